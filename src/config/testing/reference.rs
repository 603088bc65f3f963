//! The reference file, which a test compares with `config/default.toml` or writes there.

use std::fmt::Write as _;

use serde_json::Value;

use super::{allowed_values, bare, map_of, properties, schema, type_of, variable};
use crate::config::built_in::BUILT_IN;

/// The reference file: every key with its documentation and its default.
pub fn reference() -> String {
    let schema = schema();
    let mut text = String::from(
        "# Every key of Plimsoll's configuration with its default. Generated from src/config/raw.rs\n\
         # (PLIMSOLL_BLESS=1 cargo test --test config); every key may be left out.\n\
         #\n\
         # Read from --config FILE (or PLIMSOLL_CONFIG), else from plimsoll/plimsoll.toml in the user's\n\
         # configuration folder ($XDG_CONFIG_HOME, else ~/.config), else from /etc/plimsoll/plimsoll.toml;\n\
         # never from the working directory. A file that others may write is refused. Environment\n\
         # variables override the file, flags override both. Paths are relative to the folder of this\n\
         # file. An unknown key is refused; `plimsoll check` prints all errors at once.\n",
    );
    table(&schema, &mut Vec::new(), &mut text);
    for name in BUILT_IN.map(|built_in| built_in.name) {
        let _ = write!(text, "\n# [upstream.{name}]\n");
        for built_in in BUILT_IN.iter().filter(|built_in| built_in.name == name) {
            let dialects: Vec<_> = built_in.dialects.iter().map(as_toml).collect();
            let _ = writeln!(text, "# base_url = \"{}\"", built_in.base_url);
            let _ = writeln!(text, "# dialects = [{}]", dialects.join(", "));
        }
    }
    text
}

fn as_toml(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).map(|value| value.to_string()).unwrap_or_default()
}

fn table(schema: &Value, path: &mut Vec<String>, out: &mut String) {
    let Some(properties) = properties(schema) else { return };
    // A table with free keys has no variables.
    let free = path.iter().any(|key| key.starts_with('N'));
    // TOML would count plain keys after a table to that table.
    for (key, below) in properties.iter().filter(|(_, below)| !is_table(below)) {
        out.push('\n');
        comment(below, out);
        path.push(key.clone());
        if !free {
            let _ = writeln!(out, "# Environment: {}", variable(path));
        }
        path.pop();
        let _ = writeln!(out, "# {key} = {}", default_of(below));
    }
    for (key, below) in properties.iter().filter(|(_, below)| is_table(below)) {
        path.push(key.clone());
        let inner = map_of(below).unwrap_or(below);
        if map_of(below).is_some() {
            path.push("NAME".to_owned());
        }
        out.push('\n');
        comment(below, out);
        let _ = writeln!(out, "# [{}]", path.join("."));
        table(inner, path, out);
        if map_of(below).is_some() {
            path.pop();
        }
        path.pop();
    }
}

fn is_table(schema: &Value) -> bool {
    properties(schema).is_some() || map_of(schema).is_some()
}

fn comment(schema: &Value, out: &mut String) {
    let text = schema["description"].as_str().or(bare(schema)["description"].as_str());
    for line in text.unwrap_or_default().lines() {
        let _ = writeln!(out, "{}", format!("# {line}").trim_end());
    }
    let allowed_values = allowed_values(schema);
    if !allowed_values.is_empty() {
        let _ = writeln!(out, "# One of: {}", allowed_values.join(", "));
    }
}

fn default_of(schema: &Value) -> String {
    match schema.get("default").filter(|value| !value.is_null()) {
        Some(value) => value.to_string(),
        None => match type_of(schema) {
            "integer" | "number" => "…".to_owned(),
            "boolean" => "true".to_owned(),
            "array" => "[…]".to_owned(),
            _ => "\"…\"".to_owned(),
        },
    }
}
