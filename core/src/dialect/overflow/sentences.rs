//! What the sentences of a refusal say about the context: that it is too long, how many tokens would fit, and how
//! many were counted.
//!
//! The words around a number say what it is: a limit ("the maximum context length is"), the prompt ("your messages
//! resulted in"), both together ("you requested"), output ("in the completion"), or something else ("images"). So no
//! list of messages is needed. Pure; the caller compares the numbers with the request.

use crate::dialect::numbers::{WINDOWS, number};

/// What a text says about the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextStatement {
    /// It says that the context, the prompt or the input is too long.
    pub is_too_long: bool,
    /// How many would fit.
    pub window: Option<u64>,
    /// How many the prompt has; `None` if it is only "about" or "at least" so many.
    pub input: Option<u64>,
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
    must than context available configured";
const INPUT: &str = "prompt input inputs messages request requested contains contained has have given received \
    passed resulted got current sent length count conversation history keep";
/// Parts of words.
const OUTPUT: &str = "output completion max_tokens max_new_tokens budget generat draft prediction";
const INEXACT: &str = "about least approximately estimated roughly";
/// Other things of which there may be too many, or that are too long.
const OTHER: &str = "image images picture pictures audio video page pages document documents file files tool tools \
    function functions definitions schema string array description bytes byte kb mb gb mib \
    characters character chars items elements pixels seconds ms minutes requests credits per by \
    turns times code status";
/// A limit of what a model can write is none of the window, unless a word says so.
const OF_WINDOW: &str = "context window max_model_len";
const EXCEEDS: &str =
    "exceed exceeds exceeded exceeding larger longer greater reached overflow overflows overflowed";

/// What is too long where a request does not fit; alone, or with one of [`MEASURES`] beside it.
const SUBJECTS: &str = "prompt input conversation";
const MEASURES: &str = "length window size limit max maximum token tokens";

/// Reads a text in lower case.
pub(super) fn read(text: &str) -> ContextStatement {
    let tokens = tokens(text);
    let is_too_long = tokens.split(|token| *token == Token::End).any(|sentence| {
        let words: Vec<&str> = sentence.iter().filter_map(Token::word).collect();
        says_too_long(&words)
    });
    let is_of_tokens = |word: &str| word.starts_with("token") || word == "context";
    let counts = counts(&tokens);
    let is_of_tokens = tokens.iter().filter_map(Token::word).any(is_of_tokens);
    ContextStatement { is_too_long, is_of_tokens, ..counts }
}

/// Whether a sentence says that the context, the prompt or the input is too long.
fn says_too_long(words: &[&str]) -> bool {
    let has = |list: &str| words.iter().any(|word| is_one_of(list, word));
    let is_too_long = words.windows(2).any(|pair| pair == ["too", "long"]);
    let is_measured =
        words.windows(2).any(|pair| pair[0] == "context" && is_one_of(MEASURES, pair[1]));
    let is_of_prompt = has(SUBJECTS);
    let is_said = is_too_long && (is_of_prompt || has("context"))
        || has(EXCEEDS) && (is_measured || is_of_prompt && has(MEASURES));
    is_said && !has(OTHER)
}

/// The tokens that a text names.
fn counts(tokens: &[Token<'_>]) -> ContextStatement {
    let has = |list: &str| tokens.iter().filter_map(Token::word).any(|word| is_one_of(list, word));
    let mut found: Vec<(NumberRole, u64)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let Token::Number(number) = *token
            && WINDOWS.contains(&number)
        {
            let seen = found.iter().find(|(_, seen)| *seen == number);
            // A prompt without output is all there is; else the first mention says what it is.
            if seen.is_none_or(|(role, _)| *role == NumberRole::Total) {
                found.push((role(tokens, at), number));
            }
        }
    }
    if let [(role, number)] = &mut found[..]
        && *number <= LARGEST_CODE
        && tokens
            .windows(3)
            .any(|it| it == [Token::Sign('('), Token::Number(*number), Token::Sign(')')])
    {
        *role = NumberRole::Other;
    }
    let of = |wanted: NumberRole| {
        found.iter().filter(move |(role, _)| *role == wanted).map(|(_, number)| *number)
    };
    let mut window = of(NumberRole::Limit).next();
    let (mut total, output) = (of(NumberRole::Total).max(), of(NumberRole::Output).next());
    let input = of(NumberRole::Input).max();
    if input.or(total).is_none() && of(NumberRole::Limit).count() == 2 {
        // Of two numbers that both may be the limit, the smaller one is.
        (total, window) = (of(NumberRole::Limit).max(), of(NumberRole::Limit).min());
    }
    let sum = input.map(|input| input.saturating_add(output.unwrap_or(0)));
    let is_of_output = output > window && has(OF_WINDOW);
    let is_beside_output = input.is_some() && output.is_none() && has(EXCEEDS);
    let is_too_many =
        window.is_some() && (sum.max(total) > window || is_of_output || is_beside_output);
    let input = input.filter(|_| !has(INEXACT));
    ContextStatement { window, input, is_too_many, ..ContextStatement::default() }
}

/// The role of the number at this place.
fn role(tokens: &[Token<'_>], at: usize) -> NumberRole {
    let before = words_before(&tokens[..at]);
    let after = words_after(&tokens[at + 1..]);
    let is_any = |words: &[&str], list: &str| words.iter().any(|word| is_one_of(list, word));
    let is_output =
        |words: &[&str]| words.iter().any(|word| OUTPUT.split(' ').any(|part| word.contains(part)));
    let is_other = is_any(&before[..before.len().min(UNIT)], OTHER)
        || is_any(&after[..after.len().min(UNIT)], OTHER);
    let is_of_output = is_output(&before) && !is_any(&before, INPUT) && !is_any(&before, OF_WINDOW);
    let next = after.iter().find(|word| !word.starts_with("token"));
    match (sign(tokens[..at].iter().rev()), sign(tokens[at + 1..].iter())) {
        // `<400>`: a status.
        (Some('<'), Some('>')) => NumberRole::Other,
        _ if is_other => NumberRole::Other,
        _ if is_output(&after) => NumberRole::Output,
        _ if next.is_some_and(|next| is_one_of(LIMIT, next)) => NumberRole::Limit,
        _ if is_of_output => NumberRole::Output,
        (Some('+'), _) => NumberRole::Output,
        (Some('>' | '<' | '/'), _) => NumberRole::Limit,
        (_, Some('+' | '>' | '/')) => NumberRole::Input,
        _ if is_any(&before, LIMIT) => NumberRole::Limit,
        _ if is_any(&before, "total you") && is_any(&before, "requested total") => {
            NumberRole::Total
        }
        _ if is_any(&before, INPUT) || is_any(&after, INPUT) => NumberRole::Input,
        _ => NumberRole::Other,
    }
}

fn is_one_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

/// The words before a number, up to another number or the end of a sentence, the nearest first.
fn words_before<'t>(tokens: &[Token<'t>]) -> Vec<&'t str> {
    let same =
        tokens.iter().rev().take_while(|token| !matches!(token, Token::Number(_) | Token::End));
    same.filter_map(Token::word).take(BEFORE).collect()
}

/// The words after a number, up to the next number or the end of its clause.
fn words_after<'t>(tokens: &[Token<'t>]) -> Vec<&'t str> {
    tokens.iter().map_while(Token::word).take(AFTER).collect()
}

/// The sign beside a number, past the word "tokens".
fn sign<'t>(mut tokens: impl Iterator<Item = &'t Token<'t>>) -> Option<char> {
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
            rest = after;
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

/// Whether a word or a version goes on after its first digits: `4.1`, `128k`, `5-mini`.
fn continues(after: &str) -> bool {
    let mut signs = after.chars();
    match signs.next() {
        Some('.') => signs.next().is_some_and(|next| next.is_ascii_digit()),
        Some('-') => signs.next().is_some_and(char::is_alphanumeric),
        Some(next) => next.is_alphanumeric() || next == '_',
        None => false,
    }
}

/// The end of the word at the start of a text: names and paths are one word.
fn word_end(text: &str) -> usize {
    let is_part = |at: usize, sign: char| {
        let next = text[at + sign.len_utf8()..].chars().next();
        sign.is_alphanumeric()
            || sign == '_'
            || matches!(sign, '-' | '\'' | '.') && next.is_some_and(char::is_alphanumeric)
    };
    text.char_indices().find(|(at, sign)| !is_part(*at, *sign)).map_or(text.len(), |(end, _)| end)
}
