//! How names of models are spelled: with prefixes of vendors and clouds, with other separators, and with words after them.
//!
//! Must not know the models.

/// Words that say how open weights are made, stored or served.
const SERVING: &[&str] = &[
    "latest",
    "preview",
    "beta",
    "exp",
    "experimental",
    "instruct",
    "it",
    "chat",
    "thinking",
    "versatile",
    "instant",
    "maas",
    "tee",
    "v1",
    "v2",
    "hf",
    "gguf",
    "awq",
    "gptq",
    "mlx",
    "bf16",
    "fp8",
    "fp16",
    "int4",
    "int8",
    "k",
    "m",
    "s",
    "l",
    "xs",
    "4bit",
    "8bit",
    "mxfp4",
    "nvfp4",
    "qat",
];

/// Whether what follows the name of open weights says how they are served: dates, sizes (`70b`, `a17b`, `16e`),
/// quantization (`q4_k_m`), [`SERVING`], and any tag.
pub(super) fn is_serving(rest: &str) -> bool {
    let end = rest.find([':', '@', '[']).unwrap_or(rest.len());
    let mut words = rest[..end].split(['-', '_']).filter(|word| !word.is_empty());
    words.all(|word| {
        let digits = word.trim_start_matches(['a', 'q']).trim_end_matches(['b', 'e']);
        let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        is_number || SERVING.contains(&word)
    })
}

/// Names of vendors and clouds that are put before a model's name with a dash.
const DASHED: [&str; 8] =
    ["databricks-", "openai-", "anthropic-", "google-", "azure-", "meta-", "xai-", "zai-"];

/// Names longer than this, bytes, have no other spelling: the number of spellings grows with the length.
const LONGEST: usize = 512;

pub(super) fn spellings(name: &str) -> Vec<String> {
    if name.len() > LONGEST {
        return vec![name.to_owned()];
    }
    // Each prefix of routers and clouds: `anthropic/…`, `models/…`, `us.anthropic.…`, `arn:…/…`,
    // `ft:…`, `databricks-meta-…`.
    let mut names = Vec::new();
    without_prefixes(name, &mut names);
    // A slash after a dot or colon at which the loop stopped still ends a prefix.
    if let Some((_, last)) = name.rsplit_once('/') {
        without_prefixes(last, &mut names);
    }
    let forms: Vec<_> = names.iter().filter_map(|name| without_platform(name)).collect();
    for form in forms {
        // What was fine-tuned comes before its base.
        let base = form.strip_prefix("ft:").map(str::to_owned);
        names.push(form);
        names.extend(base);
    }
    for index in 0..names.len() {
        let mut name = names[index].clone();
        while let Some(rest) = DASHED.iter().find_map(|vendor| name.strip_prefix(vendor)) {
            // SAP writes two dashes.
            name = rest.trim_start_matches('-').to_owned();
            names.push(name.clone());
        }
    }
    let others: Vec<_> = names.iter().flat_map(|name| other_versions(name)).collect();
    names.extend(others);
    names
}

fn without_prefixes(name: &str, all: &mut Vec<String>) {
    let mut rest = name;
    all.push(rest.to_owned());
    while let Some(at) = rest.find(['/', '.', ':']) {
        let prefix = &rest[..at];
        let is_prefix = match rest.as_bytes()[at] {
            b'/' => true,
            b':' => prefix == "ft",
            // A region or vendor is a word without digits. In `gpt-4.1`, this is a version.
            _ => !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_alphabetic()),
        };
        if !is_prefix {
            break;
        }
        rest = &rest[at + 1..];
        all.push(rest.to_owned());
    }
}

/// Without what agents and clouds write after a name: Claude Code `[1m]`, Vertex `@20251101` or `@default`, Bedrock
/// `-v1:0`, OpenAI the owner of what was fine-tuned.
fn without_platform(name: &str) -> Option<String> {
    let mut form = name.split('[').next()?.to_owned();
    if let Some((model, version)) = form.split_once('@') {
        form = match version {
            "default" | "latest" => model.to_owned(),
            date => format!("{model}-{date}"),
        };
    }
    if let Some(tuned) = form.strip_prefix("ft:") {
        form = format!("ft:{}", tuned.split(':').next()?);
    } else if let Some(model) = without_revision(&form) {
        form = model.to_owned();
    }
    if form == name { None } else { Some(form) }
}

/// The name before `-v1:0`, `-1:0`, or, of Claude, `-v1`.
fn without_revision(name: &str) -> Option<&str> {
    let (start, revision) = name.split_once(':').unwrap_or((name, ""));
    let (model, version) = start.rsplit_once('-')?;
    let is_number = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b':' | b'k'))
    };
    let is_revision = match version.strip_prefix('v') {
        Some(number) if revision.is_empty() => model.starts_with("claude-") && is_number(number),
        Some(number) => is_number(number) && is_number(revision),
        None => is_number(version) && is_number(revision),
    };
    if is_revision { Some(model) } else { None }
}

fn other_versions(name: &str) -> Vec<String> {
    // With a dash for the dot (`claude-opus-4.5`, `grok-4.1-fast`) and a dot for the dash
    // (`llama-3-3-70b`), with `p` for the dot (Fireworks: `v3p1`), before Claude's line
    // (OpenRouter: `claude-4.5-haiku`), and without a dot (Azure: `gpt-35-turbo`).
    let mut others = Vec::new();
    let dashed = with_separator(name, '.', '-', usize::MAX);
    let ordered = line_first(dashed.as_deref().unwrap_or(name));
    others.extend(dashed);
    others.extend(ordered);
    // The first dash only: a later one may separate the parts of a date.
    others.extend(with_separator(name, '-', '.', 1));
    if let Some(dotted) = with_separator(name, 'p', '.', 1) {
        others.extend(dotted.strip_prefix("llama-v").map(|rest| format!("llama-{rest}")));
        others.push(dotted);
    }
    others.extend(name.strip_prefix("gpt-35-turbo").map(|rest| format!("gpt-3.5-turbo{rest}")));
    others
}

fn with_separator(name: &str, old: char, new: char, most: usize) -> Option<String> {
    let mut changed = name.as_bytes().to_vec();
    // Only between a digit and a version: other dashes and dots are part of the name.
    let places = name.match_indices(old).map(|(at, _)| at).filter(|at| {
        let follows_digit = at.checked_sub(1).is_some_and(|last| changed[last].is_ascii_digit());
        follows_digit && begins_with_version(&name[at + 1..])
    });
    let places: Vec<_> = places.take(most).collect();
    for at in &places {
        changed[*at] = new as u8;
    }
    if places.is_empty() {
        return None;
    }
    String::from_utf8(changed).ok()
}

/// `claude-haiku-4-5-20251001` for `claude-4-5-haiku-20251001`; `None` for other names.
fn line_first(name: &str) -> Option<String> {
    let rest = name.strip_prefix("claude-")?;
    let line = rest.find(|next: char| next.is_ascii_alphabetic())?;
    let version = rest[..line].strip_suffix('-').filter(|version| !version.is_empty())?;
    let ends = rest[line..].find(|next: char| !next.is_ascii_alphabetic());
    let (line, after) = rest[line..].split_at(ends.unwrap_or(rest.len() - line));
    Some(format!("claude-{line}-{version}{after}"))
}

pub(super) fn cuts(name: &str) -> impl Iterator<Item = usize> {
    let ends = name.char_indices().rev().filter(|(at, sign)| {
        let rest = name.get(at + sign.len_utf8()..).unwrap_or_default();
        // Before a date, a tag or a word (`-latest`, `-preview`, `:free`, `@001`, `[1m]`), but not
        // before a version.
        match sign {
            '-' | '_' => !begins_with_version(rest),
            ':' | '@' | '[' => true,
            _ => false,
        }
    });
    std::iter::once(name.len()).chain(ends.map(|(at, _)| at))
}

fn begins_with_version(rest: &str) -> bool {
    // One or two digits: `-5`, `-4-5`, but not `-0613`, `-001`, `-2025-11-01`; nor a size, `-8b`,
    // `-1.7b`.
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let is_size = rest[number..].starts_with(|next: char| next.is_ascii_alphabetic());
    (1..=2).contains(&digits) && !is_size
}
