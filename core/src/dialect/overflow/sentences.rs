//! What the sentences of a refusal say about the context: that it is too long, how many tokens would fit, and how
//! many were counted.
//!
//! The words around a number say what it is: a limit ("the maximum context length is"), the prompt ("your messages
//! resulted in"), both together ("you requested"), output ("in the completion"), or something else ("images"). So no
//! list of messages is needed. Pure; the caller compares the numbers with the request.

use crate::dialect::numbers::{WINDOWS, number};
use crate::dialect::status::is_status;

/// What a text says about the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextStatement {
    /// It says that the context, the prompt or the input is too long.
    pub is_too_long: bool,
    /// How many would fit.
    pub window: Option<u64>,
    /// How many the prompt has; `None` if it is only "about" or "at least" so many.
    pub input: Option<u64>,
    /// It counts the output, too, apart from the input.
    pub counts_output: bool,
    /// It is about tokens, or the context.
    pub is_of_tokens: bool,
    /// By these numbers the request does not fit.
    pub is_too_many: bool,
}

/// The role of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberRole {
    Limit,
    Input,
    /// Input and output together.
    Total,
    Output,
    Other,
    /// The words around it do not say.
    Unknown,
}

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Number(u64),
    Sign(char),
    /// The end of a sentence.
    End,
}

/// A lone smaller number in brackets is the code of an error (MiniMax's 2013).
const LARGEST_CODE: u64 = 9_999;
/// How many words before and after a number are read.
const BEFORE: usize = 9;
const AFTER: usize = 5;
/// Of these, how many tell what it counts.
const UNIT: usize = 3;

const LIMIT: &str = "maximum max limit limits limited window only supports support up allowed most capacity cannot \
    must than context available configured n_ctx max_seq_len max_model_len max_context_length max_input_tokens \
    max_num_tokens max_length session_len";
const INPUT: &str = "prompt input inputs messages request requested contains contained has have given received \
    passed resulted got current sent length count conversation history keep n_keep prompt_tokens input_tokens";
/// Behind a number: "you requested 5000 tokens in the messages".
const OF_INPUT: &str = "messages prompt input";
/// Parts of words.
const OUTPUT: &str = "output completion max_tokens max_new_tokens budget generat draft prediction";
const INEXACT: &str = "about least approximately estimated roughly";
/// Other things of which there may be too many, or that are too long.
const OTHER: &str = "image images picture pictures audio video page pages document documents file files tool tools \
    function functions definitions schema string array description bytes byte kb mb gb mib \
    characters character chars items elements pixels seconds ms minutes requests credits per by \
    turns times code status bound";
/// A limit of what a model can write is none of the window, unless a word says so.
const OF_WINDOW: &str = "context window max_model_len";
const EXCEEDS: &str =
    "exceed exceeds exceeded exceeding larger longer greater reached overflow overflows overflowed";

/// Words of a text that is about tokens.
const OF_TOKENS: &str = "context n_ctx sequence";
/// Before "fit": "does not fit into the context window".
const NOT: &str = "not cannot doesn't don't won't can't";

/// Words beside two numbers of which the larger one is too many.
const EXCESS: &str = "too over more beyond than fit fits limit";

/// What is too long where a request does not fit; alone, or with one of [`MEASURES`] beside it.
const SUBJECTS: &str = "prompt input conversation";
const MEASURES: &str = "length window size limit max maximum token tokens";

pub(super) fn read(text: &str) -> ContextStatement {
    let tokens = tokens(text);
    let is_too_long = tokens.split(|token| *token == Token::End).any(|sentence| {
        let words: Vec<&str> = sentence.iter().filter_map(Token::word).collect();
        says_too_long(&words)
    });
    let counts = counts(&tokens);
    let mut words = tokens.iter().filter_map(Token::word);
    let is_of_tokens = words.any(|word| word.contains("token") || is_one_of(OF_TOKENS, word));
    ContextStatement { is_too_long, is_of_tokens, ..counts }
}

fn says_too_long(words: &[&str]) -> bool {
    let is_too_long = words.windows(2).any(|pair| pair == ["too", "long"]);
    let is_too_large =
        words.windows(2).any(|pair| pair == ["too", "large"] || pair == ["too", "big"]);
    let is_measured = words.windows(2).any(|pair| {
        pair[0] == "context" && is_one_of(MEASURES, pair[1])
            // "максимальная длина контекста"
            || pair[1] == "context" && is_one_of("length window", pair[0])
    });
    let is_of_prompt = has_one_of(words, SUBJECTS)
        || words.windows(2).any(|pair| pair == ["tokens", "in"]) && words.contains(&"request");
    let is_unfit = words.windows(2).any(|pair| is_one_of(NOT, pair[0]) && pair[1] == "fit");
    let says_long = is_too_long && (is_of_prompt || words.contains(&"context"))
        || is_too_large && has_one_of(words, "prompt context conversation");
    let is_exceeded =
        has_one_of(words, EXCEEDS) || words.windows(2).any(|pair| pair == ["more", "than"]);
    let says_exceeds = is_exceeded && (is_measured || is_of_prompt && has_one_of(words, MEASURES));
    let says_unfit = is_unfit && is_measured;
    (says_long || says_exceeds || says_unfit) && !has_one_of(words, OTHER)
}

/// The tokens that a text names.
fn counts(tokens: &[Token<'_>]) -> ContextStatement {
    let words: Vec<&str> = tokens.iter().filter_map(Token::word).collect();
    let mut found: Vec<(NumberRole, u64)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let Token::Number(number) = *token
            && WINDOWS.contains(&number)
            && !is_status(number)
        {
            let mention = found.iter().find(|(_, other)| *other == number);
            // A prompt without output is all there is; else the first mention says what it is.
            if mention.is_none_or(|(role, _)| *role == NumberRole::Total) {
                found.push((role(tokens, at), number));
            }
        }
    }
    if let [(role, number)] = &mut found[..]
        && *number <= LARGEST_CODE
        && tokens
            .windows(3)
            .any(|tokens| tokens == [Token::Sign('('), Token::Number(*number), Token::Sign(')')])
    {
        *role = NumberRole::Other;
    }
    add_up(&mut found);
    let mut window = with_role(&found, NumberRole::Limit).next();
    let mut total = with_role(&found, NumberRole::Total).max();
    let output = with_role(&found, NumberRole::Output).next();
    let mut input = with_role(&found, NumberRole::Input).max();
    if total.or(output).is_none() && words.contains(&"total") && speaks_of_output(&words) {
        // "The total number of tokens (prompt and prediction)".
        total = input.take();
    }
    if input.or(total).is_none() && with_role(&found, NumberRole::Limit).count() == 2 {
        // Of two numbers that both may be the limit, the smaller one is.
        total = with_role(&found, NumberRole::Limit).max();
        window = with_role(&found, NumberRole::Limit).min();
    }
    if input.or(total).is_none()
        && let Some((limit, more)) = unexplained(window, &found, &words)
    {
        window = Some(limit);
        if speaks_of_output(&words) {
            total = Some(more);
        } else {
            input = Some(more);
        }
    }
    let sum = input.map(|input| input.saturating_add(output.unwrap_or(0)));
    let is_of_output = output > window && has_one_of(&words, OF_WINDOW);
    let is_beside_output = input.is_some() && output.is_none() && has_one_of(&words, EXCEEDS);
    let is_too_many =
        window.is_some() && (sum.max(total) > window || is_of_output || is_beside_output);
    let input = if has_one_of(&words, INEXACT) { None } else { input };
    let counts_output = input.is_some() && output.is_some();
    ContextStatement { window, input, counts_output, is_too_many, ..ContextStatement::default() }
}

/// A count that is the sum of an input and an output is of both, whatever the words around it say.
fn add_up(found: &mut [(NumberRole, u64)]) {
    let outputs: Vec<u64> = with_role(found, NumberRole::Output).collect();
    let inputs: Vec<u64> = with_role(found, NumberRole::Input).collect();
    let sums: Vec<u64> = inputs
        .iter()
        .flat_map(|input| outputs.iter().map(|output| input.saturating_add(*output)))
        .collect();
    for (role, number) in found {
        if *role == NumberRole::Input && sums.contains(number) {
            *role = NumberRole::Total;
        }
    }
}

/// The limit and what is more than it, where the words around the numbers do not say so: the larger one is too many.
fn unexplained(
    window: Option<u64>,
    found: &[(NumberRole, u64)],
    words: &[&str],
) -> Option<(u64, u64)> {
    let mut unknown: Vec<u64> = with_role(found, NumberRole::Unknown).collect();
    unknown.sort_unstable();
    let says_excess = has_one_of(words, EXCEEDS) || has_one_of(words, EXCESS);
    match (window, &unknown[..]) {
        (Some(limit), [more]) if *more > limit => Some((limit, *more)),
        (None, [limit, more]) if says_excess => Some((*limit, *more)),
        _ => None,
    }
}

/// The role of the number at this place.
fn role(tokens: &[Token<'_>], at: usize) -> NumberRole {
    let words_in_front = words_before(&tokens[..at]);
    let words_behind = words_after(&tokens[at + 1..]);
    let is_other = has_one_of(&words_in_front[..words_in_front.len().min(UNIT)], OTHER)
        || has_one_of(&words_behind[..words_behind.len().min(UNIT)], OTHER);
    // "Requested generation length 500": the nearest words count.
    let nearest = &words_in_front[..words_in_front.len().min(2)];
    let is_of_output = speaks_of_output(nearest) && !has_one_of(nearest, LIMIT)
        || speaks_of_output(&words_in_front)
            && !has_one_of(&words_in_front, INPUT)
            && !has_one_of(&words_in_front, OF_WINDOW);
    let next_word = words_behind.iter().find(|word| !word.starts_with("token"));
    match (sign(tokens[..at].iter().rev()), sign(tokens[at + 1..].iter())) {
        // `<400>`: a status.
        (Some('<'), Some('>')) => NumberRole::Other,
        _ if is_other || words_in_front.first() == Some(&"id") => NumberRole::Other,
        _ if speaks_of_output(&words_behind) => NumberRole::Output,
        _ if next_word.is_some_and(|next_word| is_one_of(LIMIT, next_word)) => NumberRole::Limit,
        _ if is_of_output => NumberRole::Output,
        (Some('+'), _) => NumberRole::Output,
        (Some('>' | '<' | '/'), _) => NumberRole::Limit,
        (_, Some('+' | '>' | '/')) => NumberRole::Input,
        _ if has_one_of(&words_in_front, LIMIT) => NumberRole::Limit,
        _ if has_one_of(&words_in_front, "total you")
            && has_one_of(&words_in_front, "requested total")
            && !has_one_of(&words_behind, OF_INPUT) =>
        {
            NumberRole::Total
        }
        _ if has_one_of(&words_in_front, INPUT) || has_one_of(&words_behind, INPUT) => {
            NumberRole::Input
        }
        _ => NumberRole::Unknown,
    }
}

fn with_role(
    numbers: &[(NumberRole, u64)],
    wanted: NumberRole,
) -> impl Iterator<Item = u64> + use<'_> {
    numbers.iter().filter(move |(role, _)| *role == wanted).map(|(_, number)| *number)
}

fn speaks_of_output(words: &[&str]) -> bool {
    words.iter().any(|word| OUTPUT.split(' ').any(|part| word.contains(part)))
}

fn has_one_of(words: &[&str], list: &str) -> bool {
    words.iter().any(|word| is_one_of(list, word))
}

fn is_one_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

fn words_before<'t>(tokens: &[Token<'t>]) -> Vec<&'t str> {
    // Up to another number or the end of a sentence, the nearest first.
    let same =
        tokens.iter().rev().take_while(|token| !matches!(token, Token::Number(_) | Token::End));
    same.filter_map(Token::word).take(BEFORE).collect()
}

fn words_after<'t>(tokens: &[Token<'t>]) -> Vec<&'t str> {
    // Up to the next number or the end of its clause.
    tokens.iter().map_while(Token::word).take(AFTER).collect()
}

fn sign<'t>(mut tokens: impl Iterator<Item = &'t Token<'t>>) -> Option<char> {
    // Past the word "tokens", which stands between a number and its sign.
    tokens.find_map(|token| match token {
        Token::Word(word) if word.starts_with("token") => None,
        Token::Sign('(' | ')' | '=') => None,
        Token::Sign(sign) => Some(Some(*sign)),
        _ => Some(None),
    })?
}

impl<'t> Token<'t> {
    fn word(&self) -> Option<&'t str> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let number = number(rest).filter(|(_, after)| !continues(after));
        if let Some((number, after)) = number {
            tokens.extend(number.map(Token::Number));
            // `a 200000-token window`
            rest = after.strip_prefix('-').unwrap_or(after);
        } else if first.is_alphanumeric() || first == '_' {
            let end = word_end(rest);
            tokens.push(Token::Word(&rest[..end]));
            rest = &rest[end..];
        } else {
            match first {
                '.' | ';' | '!' | '?' => tokens.push(Token::End),
                '`' | '\'' | '"' => {}
                sign if sign.is_whitespace() => {}
                sign => tokens.push(Token::Sign(sign)),
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    tokens
}

fn continues(after: &str) -> bool {
    // `4.1`, `128k` and `5-mini` are no counts.
    let mut signs = after.chars();
    match signs.next() {
        Some('.') => signs.next().is_some_and(|next| next.is_ascii_digit()),
        Some('-') => {
            signs.as_str().starts_with(char::is_alphanumeric) && !after.starts_with("-token")
        }
        Some(next) => next.is_alphanumeric() || next == '_',
        None => false,
    }
}

fn word_end(text: &str) -> usize {
    // Names and paths are one word.
    let mut chars = text.char_indices().peekable();
    while let Some((end, c)) = chars.next() {
        let joins = matches!(c, '-' | '\'' | '.')
            && chars.peek().is_some_and(|(_, next)| next.is_alphanumeric());
        if !c.is_alphanumeric() && c != '_' && !joins {
            return end;
        }
    }
    text.len()
}
