//! One line per exchange, for people or for machines, and diagnostics between them.
//!
//! Writing a line never waits for the reader: lines go into a buffer that a thread writes out; past its limit
//! they are dropped and counted. Holds no prompt, reply, key or query string (invariant 9): an [`Exchange`]
//! has none.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::diagnostics::{self, ChangeLevel, DiagnosticFeed};
use super::event::{Exchange, ExchangeTiming};
use super::labels::tokens_by_kind;
use super::refusal::RefusalReport;
use super::terminal;
use crate::context::budget::grouped;
use crate::context::overflow::OverflowReport;
use crate::context::plan::ChangeCounts;
use crate::context::policy::Mode;
use crate::context::{Band, SessionId, ThreadId};
use crate::dialect::editing::ClearingReport;
use crate::dialect::hints::ClientHints;
use crate::dialect::{Attempt, EstimateError};

/// The most bytes that wait to be written; past it, lines are dropped.
pub(super) const BACKLOG: usize = 1024 * 1024;
/// Lines are collected this long before they are written, so that a busy server wakes the writing thread a
/// few times per second, not once per exchange.
const GATHER: Duration = Duration::from_millis(20);
/// The longest name that is written in full.
const LONGEST: usize = 120;

/// The format of the log, by its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// People.
    Text,
    /// Machines.
    Json,
}

/// Where lines are written. Clones share one sink.
#[derive(Clone)]
pub struct Log {
    form: LogFormat,
    sink: Option<Arc<LogSink>>,
    /// Changes the level of diagnostics, if they are written to this log.
    level: Arc<OnceLock<ChangeLevel>>,
    /// Its diagnostics, for an exporter.
    pub(super) feed: Arc<DiagnosticFeed>,
}

impl Log {
    /// A log that writes nothing.
    pub(super) fn none() -> Self {
        Self { form: LogFormat::Text, sink: None, level: Arc::default(), feed: Arc::default() }
    }

    /// Writes lines in `form` to `out`, on a thread of its own.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn to(form: LogFormat, out: impl Write + Send + 'static) -> io::Result<Self> {
        let sink = Arc::new(LogSink::default());
        let writer = sink.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || writer.run(out))?;
        Ok(Self { form, sink: Some(sink), level: Arc::default(), feed: Arc::default() })
    }

    /// Writes the line of one exchange.
    pub(super) fn exchange(&self, exchange: &Exchange) {
        if self.sink.is_none() {
            return;
        }
        let mut line = match self.form {
            LogFormat::Text => text(exchange),
            LogFormat::Json => json(exchange),
        };
        line.push('\n');
        self.push(&line);
    }

    fn push(&self, line: &str) {
        // Every line passes through here, because logs are read in terminals.
        let Some(sink) = &self.sink else { return };
        let line = match self.form {
            LogFormat::Text => terminal::visible(line),
            LogFormat::Json => terminal::visible_json(line),
        };
        sink.push(line.as_bytes());
    }

    /// Sets the level of diagnostics from now on, if they are written to this log.
    pub fn set_level(&self, level: &str) {
        if let Some(change) = self.level.get() {
            change(level);
        }
    }

    /// Waits until all lines so far are written.
    pub fn flush(&self) {
        if let Some(sink) = &self.sink {
            sink.flush();
        }
    }

    /// The number of lines that were dropped because the reader was too slow.
    pub(super) fn dropped(&self) -> u64 {
        self.sink.as_ref().map_or(0, |sink| sink.state().dropped)
    }

    /// Writes this process's diagnostics to this log, up to `level`. Does nothing if they already have a subscriber.
    pub fn take_diagnostics(&self, level: &str) {
        let log = self.clone();
        let writer = move || log.clone();
        let is_json = self.form == LogFormat::Json;
        if let Some(change) = diagnostics::install(writer, is_json, level, self.feed.clone()) {
            let _ = self.level.set(change);
        }
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Each diagnostic is written in one call.
        self.push(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct LogSink {
    state: Mutex<LogQueue>,
    /// Signals that there is something to write.
    filled: Condvar,
    /// Signals that everything is written.
    written: Condvar,
}

#[derive(Default)]
struct LogQueue {
    waiting: Vec<u8>,
    writing: bool,
    /// Whether somebody waits until everything is written.
    hurried: bool,
    dropped: u64,
}

impl LogSink {
    fn state(&self) -> MutexGuard<'_, LogQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.waiting.len() + line.len() > BACKLOG {
            // Traffic does not wait for a log that nobody reads.
            state.dropped += 1;
            return;
        }
        let queued_bytes = state.waiting.len();
        state.waiting.extend_from_slice(line);
        let wakes =
            queued_bytes == 0 || (queued_bytes < BACKLOG / 2 && state.waiting.len() >= BACKLOG / 2);
        drop(state);
        if wakes {
            self.filled.notify_one();
        }
    }

    fn run(&self, mut out: impl Write) {
        let mut lines = Vec::new();
        loop {
            let mut state = self.state();
            while state.waiting.is_empty() {
                state.writing = false;
                state.hurried = false;
                self.written.notify_all();
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            // What comes meanwhile is written with the same call of the system.
            let gathered = self.filled.wait_timeout_while(state, GATHER, |state| {
                !state.hurried && state.waiting.len() < BACKLOG / 2
            });
            (state, _) = gathered.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut lines, &mut state.waiting);
            state.writing = true;
            drop(state);
            // A reader that is gone (a closed pipe) loses lines and causes nothing else.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
        }
    }

    pub(crate) fn flush(&self) {
        /// A log that nobody reads must not delay the shutdown.
        const TIMEOUT: Duration = Duration::from_secs(2);
        let mut state = self.state();
        state.hurried = true;
        self.filled.notify_one();
        drop(self.written.wait_timeout_while(state, TIMEOUT, |state| {
            state.writing || !state.waiting.is_empty()
        }));
    }
}

/// The line for people.
pub(crate) fn text(exchange: &Exchange) -> String {
    let mut line = LogLine(String::with_capacity(512));
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(exchange.at);
    line.push_display(humantime::format_rfc3339_millis(time));
    let upstream = exchange.upstream.as_deref().unwrap_or("-");
    line.push(&[" ", upstream, " ", &exchange.method, " ", &clean(&exchange.path), " "]);
    match exchange.status {
        Some(status) => line.push_number(status),
        None => line.push(&["-"]),
    }
    line.push(&[" "]);
    line.push_variant(exchange.outcome);
    line.push_name("id").push(&[exchange.id.as_str()]);
    for (name, value) in [
        ("provider_request_id", exchange.provider_request_id.as_deref()),
        ("model", exchange.model.as_deref()),
        ("session", exchange.session.as_ref().map(SessionId::as_str)),
        ("thread", exchange.thread.as_ref().map(ThreadId::as_str)),
    ] {
        if let Some(value) = value {
            line.push_name(name).push(&[&clean(value)]);
        }
    }
    if let Some(witness) = exchange.found_by {
        line.push_name("found_by").push_variant(witness);
    }
    if let Some(agent) = &exchange.agent {
        let name = agent.name.replace(' ', "_");
        line.push_name("client").push(&[&name, "/", agent.version.as_deref().unwrap_or("-")]);
    }
    if let Some(hints) = &exchange.hints {
        hint_fields(hints, &mut line);
    }
    if let Some(stop) = exchange.stop {
        line.push_name("stop").push_variant(stop);
    }
    if let Some(kind) = exchange.error_kind {
        line.push_name("error_kind").push_variant(kind);
    }
    if exchange.timing.silent_stream {
        line.push_name("silent_stream").push(&["true"]);
    }
    if let Some(times) = exchange.repeated_calls {
        line.push_name("repeated_calls").push_number(times);
    }
    usage_fields(exchange, &mut line);
    cost_fields(exchange, &mut line);
    accuracy_fields(exchange, &mut line);
    rewriting_fields(exchange, &mut line);
    time_fields(&exchange.timing, &mut line);
    for why in &exchange.fail_open {
        line.push_name("fail_open").push_variant(why);
    }
    for note in &exchange.notes {
        line.push_name("note").push_variant(note);
    }
    line.0
}

/// `class=subagent agent_type=explore agent=a1 parent_agent=a0 prompt=… tools=2`: what the client said.
fn hint_fields(hints: &ClientHints, line: &mut LogLine) {
    if let Some(class) = hints.class {
        line.push_name("class").push_variant(class);
    }
    if let Some(agent_type) = hints.agent_type {
        line.push_name("agent_type").push_variant(agent_type);
    }
    for (name, cause) in [("compaction", hints.compaction), ("compacted_for", hints.compacted)] {
        if let Some(cause) = cause {
            line.push_name(name).push_variant(cause);
        }
    }
    for (name, value) in
        [("agent", &hints.agent), ("parent_agent", &hints.parent_agent), ("prompt", &hints.prompt)]
    {
        if let Some(value) = value {
            line.push_name(name).push(&[&clean(value)]);
        }
    }
    if !hints.tools.is_empty() {
        let longest = hints.tools.iter().map(|tool| tool.ms).max().unwrap_or_default();
        line.push_name("tools").push_number(hints.tools.len());
        line.push_name("longest_tool").push_number(longest);
        line.push(&["ms"]);
    }
}

/// A line that is assembled piece by piece: one is written for every exchange, and `core::fmt` takes several
/// times as long. It is used only for fields that few lines have.
struct LogLine(String);

impl LogLine {
    /// Writes ` name=`; a value follows.
    fn push_name(&mut self, name: &str) -> &mut Self {
        self.push(&[" ", name, "="]);
        self
    }

    fn push(&mut self, pieces: &[&str]) {
        pieces.iter().for_each(|piece| self.0.push_str(piece));
    }

    fn push_number(&mut self, number: impl itoa::Integer) {
        self.0.push_str(itoa::Buffer::new().format(number));
    }

    fn push_tenths(&mut self, tenths: u64) {
        // Writes a number with one decimal, from whole numbers, because floats take several times as long.
        self.push_number(tenths / 10);
        self.push(&["."]);
        self.push_number(tenths % 10);
    }

    /// Writes the name of a variant.
    fn push_variant(&mut self, variant: impl AsRef<str>) {
        self.push(&[variant.as_ref()]);
    }

    fn push_display(&mut self, value: impl fmt::Display) {
        let _ = write!(self.0, "{value}");
    }
}

fn usage_fields(exchange: &Exchange, line: &mut LogLine) {
    let usage = &exchange.usage;
    for (kind, tokens) in tokens_by_kind(usage) {
        if let Some(tokens) = tokens {
            line.push_name(kind.as_ref()).push_number(tokens);
        }
    }
    if usage.lower_bound {
        line.push_name("usage").push(&["lower_bound"]);
    }
    if usage.unbilled {
        line.push_name("usage").push(&["unbilled"]);
    }
    if let Some(model) = &usage.served_by {
        line.push_name("served_by").push(&[&clean(model)]);
    }
    // `attempt=advisor_message:claude-opus-5:90314/5644`: kind, model, input and output.
    for Attempt { kind, model, usage } in &usage.attempts {
        line.push_name("attempt").push(&[&clean(kind), ":"]);
        line.push(&[&clean(model.as_ref().or(exchange.model.as_ref()).map_or("-", AsRef::as_ref))]);
        line.push(&[":"]);
        line.push_number(usage.input.unwrap_or(0));
        line.push(&["/"]);
        line.push_number(usage.output.unwrap_or(0));
    }
}

/// `cost=$0.1234 served=…`: the price, and the model that answered if it is called otherwise.
fn cost_fields(exchange: &Exchange, line: &mut LogLine) {
    if let Some(dollars) = exchange.dollars {
        line.push_name("cost").push(&["$"]);
        line.push_display(format_args!("{dollars:.4}"));
    }
    if let Some(served) = &exchange.served {
        line.push_name("served").push(&[&clean(served)]);
    }
}

/// `estimated=… (…–…) actual=… error=+… (+…%) method=…`: the range in parentheses holds nine times in ten.
fn accuracy_fields(exchange: &Exchange, line: &mut LogLine) {
    let Some(estimate) = &exchange.estimate else { return };
    line.push_name("estimated").push_number(estimate.tokens);
    if let Some(Band { low, high }) = estimate.band().filter(|band| band.low < band.high) {
        line.push(&[" ("]);
        line.push_number(low);
        line.push(&["–"]);
        line.push_number(high);
        line.push(&[")"]);
    }
    if let (Some(actual), Some(error)) = (exchange.actual(), exchange.estimate_error()) {
        line.push_name("actual").push_number(actual);
        error_field("error", error, line);
    }
    line.push_name("method").push_variant(estimate.method);
    if let Some(why) = exchange.count_estimated {
        line.push_name("count_estimated").push_variant(why);
    }
    if let Some(hidden) = exchange.hidden_input() {
        line.push_name("hidden_input").push_variant(hidden);
    }
    if exchange.is_capped() {
        line.push_name("breakdown").push(&["capped"]);
    }
    // Beside our estimate, so that one line compares them.
    let Some(classic) = &exchange.classic else { return };
    line.push_name("classic").push_display(format_args!("{} ({})", classic.tokens, classic.rules));
    if let Some(error) = exchange.classic_error() {
        error_field("classic_error", error, line);
    }
}

fn error_field(name: &str, error: EstimateError, line: &mut LogLine) {
    let sign = if error.tokens < 0 { "-" } else { "+" };
    line.push_name(name).push(&[sign]);
    line.push_number(error.tokens.unsigned_abs());
    if let Some(ratio) = error.ratio {
        line.push(&[" (", sign]);
        line.push_tenths((ratio.abs() * 1000.0).round() as u64);
        line.push(&["%)"]);
    }
}

/// `cut=3 (-12,400 tokens) put_back=1`, and why, if it was not sent that way.
fn rewriting_fields(exchange: &Exchange, line: &mut LogLine) {
    let done = &exchange.done;
    let ChangeCounts { cut, put_back, removed, compacted, injected, repaired } = done.made;
    if cut > 0 {
        line.push_name("cut")
            .push_display(format_args!("{cut} (-{} tokens)", grouped(done.removed().cut)));
    }
    if compacted > 0 {
        let tokens = grouped(done.removed().compacted);
        line.push_name("compacted").push(&["-", &tokens, " tokens"]);
    }
    let counts = [
        ("put_back", put_back),
        ("removed", removed),
        ("injected", injected),
        ("repaired", repaired),
    ];
    for (name, times) in counts {
        if times > 0 {
            line.push_name(name).push_number(times);
        }
    }
    if !done.made.is_nothing() && done.mode != Mode::Active {
        line.push_name("mode").push_variant(done.mode);
    }
    if let Some(healed) = exchange.refusal.as_ref().and_then(RefusalReport::healed) {
        line.push_name("healed").push(&[&healed]);
    }
    if let Some(cause) = done.resent {
        line.push_name("resent").push_variant(cause);
    }
    if let Some(cause) = done.revoked {
        line.push_name("revoked").push_variant(cause);
    }
    if let Some(OverflowReport { sign, saved, .. }) = done.overflow {
        let end = if saved { "saved" } else { "lost" };
        line.push_name("overflow").push(&[sign.as_ref(), " (", end, ")"]);
    }
    if done.held_out {
        line.push_name("held_out").push(&["true"]);
    }
    if let Some(ClearingReport { tool_uses, input_tokens }) = exchange.usage.cleared {
        let tokens = grouped(input_tokens);
        line.push_name("cleared").push_display(format_args!("{tool_uses} (-{tokens} tokens)"));
    }
    if let Some(miss) = exchange.usage.cache_miss {
        line.push_name("cache_miss").push_variant(miss.cause);
    }
}

fn time_fields(timing: &ExchangeTiming, line: &mut LogLine) {
    let mut ms = |name: &str, us: u64| {
        line.push_name(name).push_tenths(us.saturating_add(50) / 100);
        line.push(&["ms"]);
    };
    if let Some(us) = timing.first_byte_us {
        ms("first_byte", us);
    }
    if let Some(us) = timing.longest_gap_us {
        ms("longest_gap", us);
    }
    ms("duration", timing.duration_us);
    let hundredths = timing.request_side_us.saturating_add(5) / 10;
    line.push_name("overhead").push_number(hundredths / 100);
    line.push(&[if hundredths % 100 < 10 { ".0" } else { "." }]);
    line.push_number(hundredths % 100);
    line.push(&["ms"]);
    for (name, us) in [
        ("session_load", timing.session_load_us),
        ("count_wait", timing.count_wait_us),
        ("summary_wait", timing.compaction_wait_us),
    ] {
        if let Some(us) = us {
            line.push_name(name).push_tenths(us.saturating_add(50) / 100);
            line.push(&["ms"]);
        }
    }
}

/// The line for machines: the exchange, with derived values.
fn json(exchange: &Exchange) -> String {
    #[derive(Serialize)]
    struct JsonLine<'a> {
        timestamp: String,
        level: &'static str,
        message: &'static str,
        #[serde(flatten)]
        fields: LogFields<'a>,
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(exchange.at);
    let line = JsonLine {
        timestamp: humantime::format_rfc3339_millis(time).to_string(),
        level: "INFO",
        message: "exchange",
        fields: LogFields::from(exchange),
    };
    serde_json::to_string(&line).unwrap_or_default()
}

/// An exchange with derived values: the form in which machines receive it everywhere.
#[derive(Serialize, schemars::JsonSchema)]
#[schemars(rename = "Exchange")]
pub(crate) struct LogFields<'a> {
    /// The exchange as reported.
    #[serde(flatten)]
    pub exchange: &'a Exchange,
    /// The input tokens that the provider counted, if they can be compared.
    pub actual: Option<u64>,
    /// `estimate − actual`, tokens.
    pub error: Option<i64>,
    /// `error / actual`.
    pub error_ratio: Option<f64>,
    /// `classic - actual`, tokens.
    pub classic_error: Option<i64>,
    /// `classic_error / actual`.
    pub classic_error_ratio: Option<f64>,
}

impl<'a> From<&'a Exchange> for LogFields<'a> {
    fn from(exchange: &'a Exchange) -> Self {
        let error = exchange.estimate_error();
        let classic_error = exchange.classic_error();
        Self {
            exchange,
            actual: exchange.actual(),
            error: error.map(|error| error.tokens),
            error_ratio: error.and_then(|error| error.ratio),
            classic_error: classic_error.map(|error| error.tokens),
            classic_error_ratio: classic_error.and_then(|error| error.ratio),
        }
    }
}

/// A client's text as one token of a line: without blanks and control characters, and of limited length.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    // The case of nearly all texts.
    if text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Cow::Borrowed(text);
    }
    let characters = text.chars().take(LONGEST);
    characters.map(|c| if terminal::is_control(c) || c.is_whitespace() { '_' } else { c }).collect()
}
