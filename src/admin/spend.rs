//! Who spent what: the cost of calls and of our own summaries, by one of their names.
//!
//! Read from stored turns, at the prices of their time ([`Turn::cost`]). A call whose price is not known is counted, and its
//! cost is in no sum.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumString, VariantNames};

use super::responses::{AdminError, AdminResponse, LARGEST_PAGE, negotiated, number, parameter};
use super::state::Admin;
use crate::clock::wall;
use crate::config::PriceList;
use crate::context::budget::ToolTokens;
use crate::context::budget::grouped;
use crate::context::ledger::Ledger;
use crate::context::policy::DecisionMode;
use crate::context::savings::ExchangeSavings;
use crate::context::{Millis, SessionNames, Turn, UserTurns, thread_label};
use crate::dialect::agent::display_name;
use crate::dialect::hints::RequestClass;
use crate::dialect::model_list::is_dated;
use crate::dialect::{PartKey, Purpose, Usage};
use crate::store::{Scope, ScopeLine, ScopePage, StoreError};

/// By which of its names a call is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(AsRefStr, EnumString, VariantNames, clap::ValueEnum)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SpendBy {
    /// The model that was billed.
    #[default]
    Model,
    /// The upstream.
    Upstream,
    /// The session.
    Session,
    /// The thread: the conversation, and each sub-agent.
    Thread,
    /// The user's turn: all that was called for one message. Named by its time, UTC, and its first request.
    Turn,
    /// The agent, as it calls itself.
    Agent,
    /// The folder that the agent works in.
    Project,
    /// Each tag of the request; a call with several is listed under each, one with none under `-`.
    Tag,
    /// The person: as `x-plimsoll-user` says, else the client's credential.
    Person,
    /// What the call was for: the conversation, a sub-agent, a title, a compaction.
    Class,
    /// The tool whose definition or results were in the input; the rest.
    Tool,
    /// The MCP server of the tool; all other tools together; the rest.
    Server,
    /// The day, UTC.
    Day,
}

/// The lines of definitions whose tools are not known, of tools that no MCP server has, and of what is no tool's.
const DEFINITIONS: &str = "(definitions)";
const OWN_TOOLS: &str = "(own tools)";
const REST: &str = "(the rest)";

/// What some calls cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SpendLine {
    /// What they have in common.
    pub name: String,
    /// What people call that, if the name is an id: the session's title, or its agent and project; before
    /// that, what a thread beside the main one is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it began, if it is a session, a thread or a user's turn, ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Millis>,
    /// How many.
    pub calls: u64,
    /// US dollars, as far as their prices are known.
    pub dollars: f64,
    /// The number of calls whose price is not known.
    pub unpriced: u64,
    /// Their input, tokens.
    pub input: u64,
    /// The share of it that was read from caches.
    pub cache_read: u64,
    /// Their output, tokens.
    pub output: u64,
    /// Tokens that rewriting left out of them.
    #[serde(default)]
    pub removed: u64,
    /// What that saved, less what it cost, US dollars, as far as prices are known.
    #[serde(default)]
    pub saved: f64,
    /// Of a tool: how many calls had its definition in their input.
    #[serde(default)]
    pub defined: u64,
    /// Of a tool: how often the model called it.
    #[serde(default)]
    pub called: u64,
}

/// What was spent since a time, by one kind of name.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SpendPage {
    /// By which name.
    pub by: SpendBy,
    /// Since when, ms since 1970.
    pub since: Millis,
    /// The number of sessions in it.
    pub sessions: u64,
    /// Everything together.
    pub total: SpendLine,
    /// The dearest first; days in their order.
    pub lines: Vec<SpendLine>,
}

/// What a tool was in one call.
#[derive(Default)]
struct ToolUse {
    /// Of its definition and its results, estimated.
    tokens: u64,
    is_defined: bool,
    called: u64,
}

/// The sums of one session, or of several.
#[derive(Default)]
pub(super) struct SpendSums {
    by: SpendBy,
    lines: BTreeMap<String, SpendLine>,
    total: SpendLine,
}

impl SpendSums {
    pub(super) fn new(by: SpendBy) -> Self {
        Self { by, ..Self::default() }
    }

    /// The sums of a session's calls since a time.
    pub(super) fn from_ledger(
        by: SpendBy,
        since: Millis,
        scope: &Scope,
        ledger: &Ledger,
        prices: &PriceList,
    ) -> Self {
        let mut sums = Self::new(by);
        let names = SessionNames::from_ledger(ledger);
        let defining = ledger.turns().filter(|turn| !turn.definitions.is_empty());
        let definitions: HashMap<PartKey, &[ToolTokens]> =
            defining.map(|turn| (turn.position.tools, &turn.definitions[..])).collect();
        let user_turns = UserTurns::from_ledger(ledger);
        for turn in ledger.turns().filter(|turn| turn.at >= since) {
            let price = prices.for_turn(turn);
            let saved = turn.savings(ledger.parent(&turn.position), price);
            let saved = SpendLine::from_savings(&saved);
            let name = match by {
                SpendBy::Model => {
                    let costs = turn.costs_by_model(price);
                    // The dated name of an alias is the same model.
                    let name_of =
                        |model| if is_dated(model, &turn.model) { &turn.model } else { model };
                    // What was left out of the request is saved where its reply is billed.
                    if let Some(answer) = costs.first() {
                        sums.count(&[name_of(answer.model)], saved);
                    }
                    for cost in costs {
                        let line = sums.spent(cost.usage, cost.dollars());
                        sums.count(&[name_of(cost.model)], line);
                    }
                    continue;
                }
                SpendBy::Tag => {
                    let dollars = turn.cost(price);
                    sums.count(&tags(turn), sums.spent(&turn.usage, dollars));
                    sums.count(&tags(turn), saved);
                    continue;
                }
                SpendBy::Tool | SpendBy::Server => {
                    let defined = definitions.get(&turn.position.tools).copied();
                    let tools = sums.tools_of(turn, defined.unwrap_or_default());
                    sums.add_by_tool(turn, tools, turn.cost(price), turn.input_cost(price));
                    sums.count(&[REST], saved);
                    continue;
                }
                SpendBy::Person => person(scope, turn),
                SpendBy::Upstream => turn.upstream.to_string(),
                SpendBy::Session => scope.session.to_string(),
                SpendBy::Thread => turn.position.thread.to_string(),
                SpendBy::Turn => user_turn(&user_turns, turn.at),
                SpendBy::Agent => agent(turn, &names),
                SpendBy::Project => names.project.as_deref().unwrap_or("-").to_owned(),
                SpendBy::Class => class(turn),
                SpendBy::Day => day(turn.at),
            };
            sums.count(&[&name], saved);
            sums.count(&[&name], sums.spent(&turn.usage, turn.cost(price)));
        }
        for one in ledger.summaries(DecisionMode::Active).filter(|one| one.at >= since) {
            let dollars = prices.of_summary(one);
            let name = match by {
                SpendBy::Model => one.model.to_string(),
                SpendBy::Upstream => one.upstream.to_string(),
                SpendBy::Session => scope.session.to_string(),
                SpendBy::Turn => user_turn(&user_turns, one.at),
                SpendBy::Agent | SpendBy::Class | SpendBy::Thread => {
                    "plimsoll's summaries".to_owned()
                }
                SpendBy::Tool | SpendBy::Server => REST.to_owned(),
                SpendBy::Person => key(scope),
                SpendBy::Tag => "-".to_owned(),
                SpendBy::Project => names.project.as_deref().unwrap_or("-").to_owned(),
                SpendBy::Day => day(one.at),
            };
            sums.count(&[&name], sums.spent(&one.spent, dollars));
        }
        for turn in ledger.turns() {
            sums.describe(scope, turn, &names, &user_turns);
        }
        sums
    }

    /// Says of the line that a turn is in what people call it, and when it began.
    fn describe(
        &mut self,
        scope: &Scope,
        turn: &Turn,
        names: &SessionNames,
        user_turns: &UserTurns,
    ) {
        let position = &turn.position;
        let mut words: Vec<String> = names.description().into_iter().collect();
        let (name, began) = match self.by {
            SpendBy::Session => (scope.session.to_string(), turn.at),
            SpendBy::Thread => {
                if names.main_thread.as_ref() != Some(&position.thread) {
                    let client_thread = position.client_thread.as_deref();
                    let hints = turn.hints.as_deref();
                    let label = thread_label(turn.purpose, hints, client_thread, &position.thread);
                    words.insert(0, format!("↳ {label}"));
                }
                (position.thread.to_string(), turn.at)
            }
            SpendBy::Turn => match user_turns.at(turn.at) {
                Some((began, _)) => (user_turn(user_turns, turn.at), *began),
                None => return,
            },
            _ => return,
        };
        let Some(line) = self.lines.get_mut(&name) else { return };
        if line.began.is_none() {
            line.began = Some(began);
            line.label = if words.is_empty() { None } else { Some(words.join(" · ")) };
        }
    }

    /// Adds a line to those of all these names, and once to the total.
    fn count(&mut self, names: &[&str], line: SpendLine) {
        for name in names {
            self.list(name, line.clone());
        }
        self.total.join(line);
    }

    fn list(&mut self, name: &str, line: SpendLine) {
        let listed = self.lines.entry(name.to_owned()).or_default();
        name.clone_into(&mut listed.name);
        listed.join(line);
    }

    fn spent(&self, usage: &Usage, dollars: Option<f64>) -> SpendLine {
        let tokens = |count: fn(&Usage) -> Option<u64>| match self.by {
            // The calls of other models have lines of their own.
            SpendBy::Model => count(usage).unwrap_or(0),
            _ => usage.billed().filter_map(|(_, one)| count(one)).fold(0, u64::saturating_add),
        };
        SpendLine {
            calls: 1,
            input: tokens(|one| one.input),
            cache_read: tokens(|one| one.cache_read),
            output: tokens(|one| one.output),
            dollars: dollars.unwrap_or(0.0),
            // A call of which nothing was reported, such as one that failed, costs nothing that is known.
            unpriced: u64::from(usage.is_unpriced(dollars)),
            ..SpendLine::default()
        }
    }

    /// What each tool, or each server, was in a turn: its definitions, its results, and how often it was called.
    fn tools_of(&self, turn: &Turn, definitions: &[ToolTokens]) -> BTreeMap<String, ToolUse> {
        let mut tools: BTreeMap<String, ToolUse> = BTreeMap::new();
        let line = |tool: &str| match self.by {
            SpendBy::Server => server(tool).to_owned(),
            _ => tool.to_owned(),
        };
        for ToolTokens { tool, tokens } in definitions {
            let tool_use = tools.entry(line(tool)).or_default();
            tool_use.tokens += tokens;
            tool_use.is_defined = true;
        }
        let breakdown = turn.estimate.as_ref().map(|estimate| &estimate.breakdown);
        if let (true, Some(breakdown)) = (definitions.is_empty(), breakdown) {
            tools.entry(DEFINITIONS.to_owned()).or_default().tokens += breakdown.tools;
        }
        let contents = turn.carry.as_ref().map(|carry| &carry.contents);
        for result in contents.iter().flat_map(|contents| &contents.tool_results) {
            tools.entry(line(&result.tool)).or_default().tokens += result.tokens;
        }
        for tool in &turn.called {
            tools.entry(line(tool)).or_default().called += 1;
        }
        tools.retain(|_, one| one.tokens > 0 || one.called > 0);
        tools
    }

    /// Splits a call by what its input was made of: each tool costs its share of the input, the rest has what is left.
    fn add_by_tool(
        &mut self,
        turn: &Turn,
        tools: BTreeMap<String, ToolUse>,
        dollars: Option<f64>,
        of_input: Option<f64>,
    ) {
        self.count(&[REST], self.spent(&turn.usage, dollars));
        let (Some(input), Some(estimate)) = (turn.usage.input, &turn.estimate) else { return };
        // Weights are estimated part by part: together they may exceed the whole.
        let sum = tools.values().map(|one| one.tokens).sum::<u64>();
        let total = estimate.tokens.max(sum).max(1) as f64;
        // A provider's own word may be less than our price of the input.
        let input_dollars = of_input.zip(dollars).map(|(of_input, dollars)| of_input.min(dollars));
        for (name, one) in tools {
            let share = one.tokens as f64 / total;
            let line = SpendLine {
                calls: 1,
                dollars: input_dollars.unwrap_or(0.0) * share,
                unpriced: u64::from(dollars.is_none()),
                input: (input as f64 * share) as u64,
                cache_read: (turn.usage.cache_read.unwrap_or(0) as f64 * share) as u64,
                defined: u64::from(one.is_defined),
                called: one.called,
                ..SpendLine::default()
            };
            if let Some(rest) = self.lines.get_mut(REST) {
                rest.dollars -= line.dollars;
                rest.input = rest.input.saturating_sub(line.input);
                rest.cache_read = rest.cache_read.saturating_sub(line.cache_read);
            }
            self.list(&name, line);
        }
    }

    pub(super) fn join(&mut self, other: Self) {
        for (name, line) in other.lines {
            self.list(&name, line);
        }
        self.total.join(other.total);
    }

    pub(super) fn page(self, since: Millis, sessions: u64) -> SpendPage {
        let total = SpendLine { name: "total".to_owned(), ..self.total };
        let mut lines: Vec<SpendLine> = self.lines.into_values().collect();
        if self.by != SpendBy::Day {
            lines.sort_by(|one, other| other.dollars.total_cmp(&one.dollars));
        }
        SpendPage { by: self.by, since, sessions, total, lines }
    }
}

impl SpendPage {
    /// The lines as comma-separated values, with a head.
    pub(crate) fn csv(&self) -> String {
        let mut csv = format!(
            "{},dollars,calls,unpriced,input,cache_read,output,removed,saved,defined,called\n",
            self.by.as_ref()
        );
        for line in &self.lines {
            let name = shown(&line.name).replace('"', "\"\"");
            let SpendLine { dollars, saved, calls, unpriced, input, .. } = line;
            let SpendLine { cache_read, output, removed, defined, called, .. } = line;
            csv += &format!(
                "\"{name}\",{dollars:.6},{calls},{unpriced},{input},{cache_read},{output},{removed},{saved:.6},{defined},{called}\n"
            );
        }
        csv
    }
}

impl SpendLine {
    fn from_savings(saved: &ExchangeSavings) -> Self {
        let dollars = saved.money.map_or(0.0, |money| money.saved - money.broken);
        Self { removed: saved.gone(), saved: dollars, ..Self::default() }
    }

    fn join(&mut self, other: Self) {
        self.label = self.label.take().or(other.label);
        self.began = self.began.or(other.began);
        self.calls += other.calls;
        self.dollars += other.dollars;
        self.unpriced += other.unpriced;
        self.input = self.input.saturating_add(other.input);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.output = self.output.saturating_add(other.output);
        self.removed = self.removed.saturating_add(other.removed);
        self.saved += other.saved;
        self.defined += other.defined;
        self.called += other.called;
    }
}

fn agent(turn: &Turn, names: &SessionNames) -> String {
    let agent = turn.origin.as_deref().and_then(|origin| origin.agent.as_ref());
    agent.or(names.agent.as_ref()).map_or("-", |agent| &agent.name).to_owned()
}

/// A name in one line: strangers chose some.
pub(crate) fn shown(name: &str) -> Box<str> {
    display_name(name).unwrap_or_else(|| "-".into())
}

/// The MCP server of a tool, as clients name such tools: `mcp__SERVER__TOOL`.
fn server(tool: &str) -> &str {
    let named = tool.strip_prefix("mcp__").and_then(|name| name.split_once("__"));
    named.map_or(OWN_TOOLS, |(server, _)| server)
}

fn tags(turn: &Turn) -> Vec<&str> {
    let tags = turn.origin.as_deref().map(|origin| &origin.tags[..]).unwrap_or_default();
    if tags.is_empty() { vec!["-"] } else { tags.iter().map(AsRef::as_ref).collect() }
}

fn person(scope: &Scope, turn: &Turn) -> String {
    let user = tags(turn).into_iter().find_map(|tag| tag.strip_prefix("user="));
    user.map_or_else(|| key(scope), str::to_owned)
}

/// A credential, as `limits` shows it.
fn key(scope: &Scope) -> String {
    let tenant: String = scope.tenant.as_str().chars().take(8).collect();
    format!("key {tenant}")
}

fn class(turn: &Turn) -> String {
    let class = match turn.hints.as_ref().and_then(|hints| hints.class) {
        Some(class) => class,
        None if turn.purpose == Purpose::Turn => RequestClass::Main,
        None => return turn.purpose.as_ref().to_owned(),
    };
    class.as_ref().to_owned()
}

fn user_turn(turns: &UserTurns, at: Millis) -> String {
    let Some((began, exchange)) = turns.at(at) else { return "-".to_owned() };
    format!("{} {exchange}", time(*began, "%Y-%m-%d %H:%M"))
}

fn day(at: Millis) -> String {
    time(at, "%Y-%m-%d")
}

fn time(at: Millis, form: &str) -> String {
    let timestamp = i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    timestamp.map_or_else(|| "-".to_owned(), |time| time.strftime(form).to_string())
}

/// Spending without a time is that of so long, milliseconds: 30 days.
const SPEND_PERIOD: Millis = 30 * 24 * 60 * 60 * 1000;
/// Sessions that are read at a time: while some are on their way, others are summed up.
const AT_ONCE: usize = 8;

pub(super) async fn answer(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    let query = request.uri().query();
    let by = match parameter(query, "by") {
        None => SpendBy::default(),
        Some(by) => by.parse().map_err(|_| {
            let message = format!("by should be one of {}.", SpendBy::VARIANTS.join(", "));
            AdminError::new(StatusCode::BAD_REQUEST, "bad_query", message)
        })?,
    };
    let since = match number(query, "since")? {
        Some(since) => since as Millis,
        None => wall().saturating_sub(SPEND_PERIOD),
    };
    let mut sums = SpendSums::new(by);
    let mut sessions = 0;
    let mut page = ScopePage { after: None, skip: 0, count: LARGEST_PAGE };
    loop {
        let lines = admin.ledgers.sessions(page).await?;
        // Newest first: the rest was last used before.
        page.after = lines.last().map(|line| line.cursor);
        let used: Vec<ScopeLine> =
            lines.into_iter().filter(|line| line.cursor.used >= since).collect();
        let is_last = used.len() < LARGEST_PAGE;
        let reading = used.into_iter().map(|line| sums_of(admin, by, since, line.scope));
        let mut reading = stream::iter(reading).buffer_unordered(AT_ONCE);
        while let Some(session) = reading.try_next().await? {
            sums.join(session);
            sessions += 1;
        }
        if is_last {
            break;
        }
    }
    Ok(negotiated(&sums.page(since, sessions), request))
}

/// The sums of one session.
async fn sums_of(
    admin: &Admin,
    by: SpendBy,
    since: Millis,
    scope: Scope,
) -> Result<SpendSums, StoreError> {
    let prices = admin.prices.clone();
    let name = scope.clone();
    let looking = admin.ledgers.look_at_one_of_many(&scope, move |ledger| {
        SpendSums::from_ledger(by, since, &name, ledger, &prices)
    });
    looking.await
}

impl fmt::Display for SpendPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.lines.iter().map(|line| shown(&line.name).chars().count());
        let width = names.max().unwrap_or(0).max(5);
        writeln!(
            f,
            "{:<width$} {:>10} {:>8} {:>13} {:>7} {:>11}",
            self.by.as_ref().to_uppercase(),
            "COST",
            "CALLS",
            "INPUT",
            "CACHED",
            "OUTPUT"
        )?;
        for line in self.lines.iter().chain([&self.total]) {
            let cached = line.cache_read as f64 * 100.0 / line.input.max(1) as f64;
            let name = shown(&line.name);
            write!(
                f,
                "{name:<width$} {:>10} {:>8} {:>13} {cached:>6.0}% {:>11}",
                format!("${:.2}", line.dollars),
                grouped(line.calls),
                grouped(line.input),
                grouped(line.output)
            )?;
            if line.defined > 0 || line.called > 0 {
                let [defined, called] = [line.defined, line.called].map(grouped);
                write!(f, "  defined in {defined}, called {called} times")?;
            }
            if line.unpriced > 0 {
                write!(f, "  {} calls without a known price", grouped(line.unpriced))?;
            }
            match &line.label {
                Some(label) => writeln!(f, "  {}", shown(label))?,
                None => writeln!(f)?,
            }
        }
        let sessions = if self.sessions == 1 { "session" } else { "sessions" };
        write!(f, "Since {} UTC, {} {sessions}.", day(self.since), grouped(self.sessions))
    }
}
