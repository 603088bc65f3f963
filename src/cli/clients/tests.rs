use super::edit::{values_at, with_values};
use super::*;

fn filled(format: FileFormat, text: &str, path: &str) -> Result<String, String> {
    with_values(format, text, &[(path, "http://p".to_owned())])
}

#[test]
fn names_and_programs_are_unique() {
    let names = TABLE.clients.iter().map(|client| &client.name);
    let programs = TABLE.clients.iter().flat_map(|client| &client.programs);
    for words in [names.collect::<Vec<_>>(), programs.collect()] {
        let mut distinct = words.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), words.len(), "{words:?}");
    }
    assert!(TABLE.clients.len() >= 20);
}

#[test]
fn every_agent_is_pointed_or_says_why_not() {
    for client in &TABLE.clients {
        let is_pointed = client.reads.is_some()
            || !client.environment.is_empty()
            || !client.unless_set.is_empty()
            || !client.with_key.is_empty()
            || !client.arguments.is_empty()
            || client.file.as_ref().is_some_and(|file| file.overlay);
        assert!(is_pointed || !client.limits.is_empty(), "{}", client.name);
        for name in client.reads.iter().flat_map(|reads| reads.split(", ")) {
            assert!(TABLE.environment.contains_key(name), "{}: {name}", client.name);
        }
    }
}

#[test]
fn templates_have_no_other_names() {
    let text = include_str!("../../../config/clients.toml");
    let table: toml::Table = text.parse().unwrap();
    let filled = Template { root: "R", key: "K" }.fill(&table.to_string());
    for (at, _) in filled.match_indices('{') {
        let name: String = filled[at + 1..].chars().take_while(char::is_ascii_lowercase).collect();
        let is_template = !name.is_empty() && filled[at + 1 + name.len()..].starts_with('}');
        assert!(!is_template, "{{{name}}}");
    }
}

#[test]
fn files_take_their_values() {
    for client in &TABLE.clients {
        let Some(file) = &client.file else { continue };
        let values = file.values(&Template::new("http://p"));
        assert!(!file.overlay || file.variable.is_some(), "{}", client.name);
        if values.iter().any(|(path, _)| path.contains(['?', '['])) {
            continue;
        }
        let text = with_values(file.format, "", &values).unwrap();
        for (path, value) in &values {
            assert_eq!(values_at(file.format, &text, path), [value.as_str()], "{}", client.name);
        }
        assert!(!file.overlay || file.variable.is_some(), "{}", client.name);
        assert!(
            file.format != FileFormat::Toml || values.iter().all(|(key, _)| !key.contains('.'))
        );
    }
}

#[test]
fn json_members_are_added_in_place() {
    let text = r#"{"z": 1, "a": {"c": [true]}}"#;
    let edited = filled(FileFormat::Json, text, "a.b.url").unwrap();
    let value: serde_json::Value = serde_json::from_str(&edited).unwrap();
    assert_eq!(value["a"]["b"]["url"], "http://p");
    assert_eq!(value["a"]["c"][0], true);
    assert!(edited.find("\"z\"") < edited.find("\"a\""), "{edited}");
}

#[test]
fn optional_members_stay_absent() {
    let refused = filled(FileFormat::Json, "{}", "a?.url").unwrap_err();
    assert_eq!(refused, "has no place for an address (a?.url)");
    let edited = filled(FileFormat::Json, r#"{"a": {}}"#, "a?.url").unwrap();
    assert_eq!(values_at(FileFormat::Json, &edited, "a?.url"), ["http://p"]);
}

#[test]
fn elements_are_chosen_by_a_member() {
    let text = r#"{"m": [{"k": "x"}, {"k": "y", "url": "old"}, {"k": "x"}]}"#;
    let edited = filled(FileFormat::Json, text, "m[k=x].url").unwrap();
    assert_eq!(values_at(FileFormat::Json, &edited, "m[k=x].url"), ["http://p", "http://p"]);
    assert_eq!(values_at(FileFormat::Json, &edited, "m[k=y].url"), ["old"]);
}

#[test]
fn what_is_not_understood_is_refused() {
    for (text, why) in [
        ("// mine\n{}", "is not plain JSON"),
        ("[]", "is not a JSON object"),
        (r#"{"a": 1}"#, "has something else at url"),
    ] {
        let refused = filled(FileFormat::Json, text, "a.url").unwrap_err();
        assert!(refused.starts_with(why), "{text}: {refused}");
    }
    let refused = filled(FileFormat::Toml, "url = \"http://mine\"\n", "url").unwrap_err();
    assert!(refused.contains("change that yourself"), "{refused}");
}

#[test]
fn toml_keeps_its_text() {
    let text = "# mine\nmodel = 'x'\n[table]\nurl = 1\n";
    let edited = filled(FileFormat::Toml, text, "url").unwrap();
    assert_eq!(edited, format!("url = \"http://p\"\n{text}"));
    assert_eq!(filled(FileFormat::Toml, &edited, "url").unwrap(), edited);
}

#[test]
fn variables_are_replaced_or_added() {
    let edited = filled(FileFormat::Env, "A=1\nexport URL=\"old\"\n", "URL").unwrap();
    assert_eq!(edited, "A=1\nURL=http://p\n");
    assert_eq!(filled(FileFormat::Env, "A=1", "URL").unwrap(), "A=1\nURL=http://p\n");
}

/// Before and after the table in `docs/clients.md`.
const TABLE_MARKS: [&str; 2] =
    ["<!-- agents: from config/clients.toml -->\n\n", "\n<!-- end -->\n"];

#[test]
fn documentation_has_every_agent() {
    let path = "docs/clients.md";
    let written = std::fs::read_to_string(path).unwrap();
    let [begin, end] = TABLE_MARKS;
    let (before, rest) = written.split_once(begin).expect("the table's beginning");
    let (_, after) = rest.split_once(end).expect("the table's end");
    let generated = format!("{before}{begin}{}{end}{after}", documented());
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        std::fs::write(path, &generated).unwrap();
    }
    assert_eq!(generated, written, "PLIMSOLL_BLESS=1 writes it");
}

fn documented() -> String {
    let mut table =
        "| agent | `run` uses | `setup` writes | what it cannot be made to do | tested |\n\
                     |---|---|---|---|---|\n"
            .to_owned();
    for client in &TABLE.clients {
        let mut variables: Vec<&String> =
            client.environment.keys().chain(client.unless_set.keys()).collect();
        for row in &client.with_key {
            variables.extend(row.environment.keys().chain(row.unless_set.keys()));
        }
        variables.sort();
        variables.dedup();
        let read = client.reads.iter().flat_map(|names| names.split(", "));
        let names = read.chain(variables.into_iter().map(String::as_str));
        let mut uses: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        if !client.arguments.is_empty() {
            uses.push(format!("`{}`", client.arguments.join(" ")));
        }
        if client.file.as_ref().is_some_and(|file| file.overlay) {
            uses.push("a copy of its folder".to_owned());
        }
        let limits: Vec<&str> = client.limits.iter().map(|limit| &*limit.text).collect();
        let cells = [
            client.title.clone(),
            uses.join(", "),
            client.file.as_ref().map_or(String::new(), |file| format!("`{}`", file.shown())),
            limits.join("; "),
            client.tested.clone().unwrap_or_default(),
        ];
        let cells = cells.map(|cell| if cell.is_empty() { "–".to_owned() } else { cell });
        table += &format!("| {} |\n", cells.join(" | "));
    }
    table
}
