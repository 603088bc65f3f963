//! Configurations as data: a file is read, and the result is every error, or the resolved configuration.
//!
//! Also compares the generated reference file and JSON Schema with the code.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use plimsoll::config::{self, ConfigFlag, ConfigSources, schema};

/// Compares with a file, or writes the file if `PLIMSOLL_BLESS` is set.
fn compare(path: &Path, is: &str) {
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        return std::fs::write(path, is).unwrap();
    }
    let was = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        was == is,
        "{} is not what the code says; read the difference, then PLIMSOLL_BLESS=1:\n{is}",
        path.display()
    );
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The variables and flags that a test file lists in its comments.
fn sources(path: &Path) -> ConfigSources {
    let text = std::fs::read_to_string(path).unwrap();
    let listed = |kind: &str| -> Vec<(String, String)> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
        let pairs = lines.map(|line| line.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let mut variables = listed("# variable ");
    variables.push(("HOME".into(), "/home/somebody".into()));
    // The memory limit of the manifests, whatever this machine has.
    if !text.contains("process_bytes") {
        variables.push(("PLIMSOLL_LIMITS_PROCESS_BYTES".into(), (256 << 20).to_string()));
    }
    let flags = listed("# flag ");
    ConfigSources {
        file: Some(path.to_owned()),
        variables,
        flags: flags
            .into_iter()
            .map(|(key, value)| ConfigFlag { name: format!("--{key}"), key, value })
            .collect(),
        ..ConfigSources::default()
    }
}

/// Everything that a user would be shown, with the path as the user would have typed it.
fn verdict(path: &Path) -> String {
    let text = match config::load(&sources(path)) {
        Err(faults) => faults.to_string(),
        Ok(loaded) => {
            let warnings: String =
                loaded.warnings.iter().map(|it| format!("note: {it}\n")).collect();
            format!("{warnings}{:#?}\n", loaded.config)
        }
    };
    let name = path.file_name().unwrap().to_str().unwrap();
    let folder = format!("{}/", path.parent().unwrap().display());
    text.replace(path.to_str().unwrap(), name).replace(&folder, "")
}

#[test]
fn every_fault_is_reported_at_once() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("tests/config/cases")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        seen += 1;
        let text = verdict(&path);
        for secret in ["in-the-text", "hunter2", "sk-from-the-environment", "in-the-environment"] {
            assert!(!text.contains(secret), "{}: a secret is printed:\n{text}", path.display());
        }
        compare(&path.with_extension("txt"), &text);
    }
    assert!(seen >= 10, "only {seen} files");
}

#[test]
fn configured_secrets_become_credentials_of_their_upstreams() {
    let path = root().join("tests/config/cases/whole.toml");
    let loaded = config::load(&sources(&path)).unwrap();
    let sent: Vec<_> = loaded
        .config
        .upstreams
        .iter()
        .map(|it| {
            let (header, secret) = it.credential.as_ref().unwrap();
            format!("{}: {header}: {}", it.name, secret.0)
        })
        .collect();
    assert_eq!(
        sent,
        [
            "azure: api-key: sk-from-the-environment",
            "anthropic: x-api-key: sk-from-the-environment",
            "openai: authorization: Bearer sk-from-the-environment",
        ]
    );
}

#[test]
fn secret_can_come_from_file() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "sk-in-a-file\n").unwrap();
    let file = folder.path().join("plimsoll.toml");
    let text =
        format!("data = \"d\"\n[upstream.gemini]\ncredential = \"file:{}\"\n", key.display());
    std::fs::write(&file, text).unwrap();
    let loaded =
        config::load(&ConfigSources { file: Some(file), ..ConfigSources::default() }).unwrap();
    let gemini = loaded.config.upstreams.iter().find(|it| &*it.name == "gemini").unwrap();
    assert_eq!(gemini.credential.as_ref().unwrap().1.0, "sk-in-a-file");
}

/// A file of the wrong kind is found before a port is bound, and a key is never printed.
#[test]
fn pem_files_of_wrong_kind_are_refused_without_printing_keys() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("certificate"), made.cert.pem()).unwrap();
    std::fs::write(at("key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(
        at("broken"),
        "-----BEGIN PRIVATE KEY-----\nsecret!\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    let check = |certificate: &str, key: &str, extra_ca: &str| {
        let text = format!(
            "data = \"d\"\nextra_ca = {:?}\n[tls]\ncertificate = {:?}\nkey = {:?}\n",
            at(extra_ca),
            at(certificate),
            at(key)
        );
        std::fs::write(at("plimsoll.toml"), text).unwrap();
        let sources =
            ConfigSources { file: Some(at("plimsoll.toml").into()), ..ConfigSources::default() };
        config::load(&sources).map_or_else(|faults| faults.to_string(), |_| String::new())
    };
    assert_eq!(check("certificate", "key", "certificate"), "");
    let faults = check("key", "certificate", "key");
    assert_eq!(faults.matches("contains no certificate").count(), 2, "{faults}");
    assert!(faults.contains("contains no private key"), "{faults}");
    let faults = check("certificate", "broken", "certificate");
    assert!(faults.contains("is broken PEM"), "{faults}");
    assert!(!faults.contains("secret!"), "{faults}");
}

#[test]
fn without_file_three_are_served() {
    let home = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
    let sources = ConfigSources { variables: home, ..ConfigSources::default() };
    let config = config::load(&sources).unwrap().config;
    assert_eq!(config.listen.to_string(), "127.0.0.1:8787");
    assert_eq!(config.admin.to_string(), "127.0.0.1:9797");
    assert_eq!(config.data, Path::new("/home/somebody/.local/share/plimsoll"));
    let names: Vec<_> =
        config.upstreams.iter().map(|it| (&*it.name, it.base.to_string())).collect();
    assert_eq!(
        names,
        [
            ("anthropic", "https://api.anthropic.com/".to_owned()),
            ("openai", "https://api.openai.com/v1".to_owned()),
            ("gemini", "https://generativelanguage.googleapis.com/".to_owned()),
        ]
    );
}

#[test]
fn configuration_file_that_was_named_must_exist() {
    let file = Some(PathBuf::from("/nowhere/plimsoll.toml"));
    let faults =
        config::load(&ConfigSources { file, ..ConfigSources::default() }).unwrap_err().to_string();
    assert!(faults.contains("/nowhere/plimsoll.toml: cannot be read"), "{faults}");
}

/// A relative path in a file is relative to that file, wherever the program is started.
#[test]
fn path_starts_at_folder_of_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("key"), "sk-beside-the-file\n").unwrap();
    std::fs::write(at("plimsoll.toml"), "data = \"d\"\nadmin_token = \"file:key\"\n").unwrap();
    let sources = ConfigSources { file: Some(at("plimsoll.toml")), ..ConfigSources::default() };
    let config = config::load(&sources).unwrap().config;
    assert_eq!(config.admin_token.unwrap().0.as_str(), "sk-beside-the-file");
    assert_eq!(config.data, at("d"));
    // A relative path on the command line is relative to the working directory.
    let flags = vec![ConfigFlag { name: "--data".into(), key: "data".into(), value: "d".into() }];
    let typed = config::load(&ConfigSources { flags, ..ConfigSources::default() }).unwrap().config;
    assert_eq!(typed.data, Path::new("d"));
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn readable_secret_file_is_warning_and_writable_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("key"), "sk-in-a-file-of-mine\n").unwrap();
    std::fs::write(at("plimsoll.toml"), "data = \"d\"\nadmin_token = \"file:key\"\n").unwrap();
    let load = |mode| {
        set_mode(&at("key"), mode);
        config::load(&ConfigSources { file: Some(at("plimsoll.toml")), ..ConfigSources::default() })
    };
    assert_eq!(load(0o600).unwrap().warnings, Vec::<String>::new());
    let warnings = load(0o644).unwrap().warnings.join("\n");
    let shown = at("key").display().to_string();
    assert!(
        warnings.starts_with(&format!("admin_token: {shown} can be read by other users")),
        "{warnings}"
    );
    assert!(warnings.ends_with(&format!("`chmod 600 {shown}`")), "{warnings}");
    let faults = load(0o666).unwrap_err().to_string();
    assert!(faults.contains(&format!("admin_token: {shown} can be written")), "{faults}");
    assert!(faults.contains(&format!("chmod go-w {shown}")), "{faults}");
}

#[test]
fn certificate_authorities_that_others_may_write_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(at("ca.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("plimsoll.toml"), "data = \"d\"\nextra_ca = \"ca.pem\"\n").unwrap();
    let load = |mode| {
        set_mode(&at("ca.pem"), mode);
        config::load(&ConfigSources { file: Some(at("plimsoll.toml")), ..ConfigSources::default() })
    };
    // The certificates may be readable for everybody.
    assert_eq!(load(0o644).unwrap().warnings, Vec::<String>::new());
    let faults = load(0o646).unwrap_err().to_string();
    assert!(faults.contains("extra_ca: "), "{faults}");
    assert!(faults.contains("can be written"), "{faults}");
}

proptest::proptest! {
    /// Whatever a file contains, the result is a configuration, or errors with places.
    #[test]
    fn no_text_makes_loading_panic(text in "([a-z_]{1,9}(\\.[a-z]{1,4})? ?= ?[0-9a-z\"\\[\\]{},. -]{0,12}\n|\\[{1,2}[a-z.\"]{0,12}\\]{0,2}\n|[ -~é]{0,20}\n){0,12}") {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plimsoll.toml");
        std::fs::write(&file, text).unwrap();
        let variables = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
        let sources = ConfigSources { file: Some(file), variables, ..ConfigSources::default() };
        if let Err(faults) = config::load(&sources) {
            assert!(!faults.is_empty());
            assert!(!faults.to_string().is_empty());
        }
    }
}

#[test]
fn reference_file_is_current() {
    compare(&root().join("config/default.toml"), &schema::reference::reference());
}

#[test]
fn schema_is_current() {
    let schema = serde_json::to_string_pretty(&schema::schema()).unwrap();
    compare(&root().join("config/schema.json"), &format!("{schema}\n"));
}

/// The reference file without its comment signs is a valid configuration, and contains the defaults.
#[test]
fn reference_file_says_defaults() {
    let mut text = String::new();
    for line in schema::reference::reference().lines() {
        let Some(bare) = line.strip_prefix("# ") else { continue };
        let is_key = bare.split_once(" = ").is_some_and(|(key, _)| {
            key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        });
        let placeholder = bare.ends_with('…') || bare.contains("\"…\"") || bare.contains("[…]");
        if (is_key && !placeholder) || (bare.starts_with('[') && !bare.contains("NAME")) {
            text.push_str(bare);
            text.push('\n');
        } else if bare.starts_with('[') {
            break; // free names have no defaults
        }
    }
    assert!(text.contains("[limits]"), "{text}");
    assert!(text.contains("listen = "), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    // TLS has no defaults: without configuration there is none.
    let mut is_tls = false;
    let has_default = |line: &&str| {
        is_tls = if line.starts_with('[') { *line == "[tls]" } else { is_tls };
        !is_tls
    };
    let text: String = text.lines().filter(has_default).map(|line| format!("{line}\n")).collect();
    std::fs::write(&file, &text).unwrap();
    let variables = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
    let bare = ConfigSources { variables, ..ConfigSources::default() };
    let with = ConfigSources { file: Some(file), ..bare.clone() };
    let default = format!("{:?}", config::load(&bare).unwrap().config);
    let loaded = config::load(&with).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    assert_eq!(format!("{:?}", loaded.config), default);
}

/// The waits that cannot be configured: the file and the constant that they come from, and their rows.
const FIXED_WAITS: &[(&str, &str, &str)] = &[
    ("server/full.rs", "const TIMEOUT: Duration = Duration::from_secs(2)", "get 503 | 2 s"),
    (
        "state/exchange_recorder.rs",
        "const REPORTED_WITHIN: Duration = Duration::from_secs(5)",
        "is kept | 5 s",
    ),
    ("offload.rs", "const TIMEOUT: Duration = Duration::from_secs(2)", "tenants take turns | 2 s"),
    ("offload.rs", "const TIMEOUT: Duration = Duration::from_secs(2)", "quotes | 2 s"),
    ("http/body.rs", "const WAIT: Duration = Duration::from_secs(1)", "memory | 1 s"),
    ("http/body.rs", "const START: Duration = Duration::from_secs(2)", "endpoint | 2 s"),
    ("http/upstream/http2.rs", "timeout(self.timeout * 2, &mut placement)", "each time | 20 s"),
    (
        "http/upstream/limits.rs",
        "pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(1)",
        "is sent on it | 1 s",
    ),
    (
        "http/upstream/limits.rs",
        "pub(super) const TCP_UNACKNOWLEDGED: Duration = Duration::from_secs(30)",
        "confirms them (Linux) | 30 s",
    ),
    (
        "http/upstream/http2.rs",
        "const STREAM_START: Duration = Duration::from_secs(1)",
        "got its place | 1 s",
    ),
    (
        "../store/sqlite/readers.rs",
        "const LEAVE: Duration = Duration::from_secs(2)",
        "to end | 2 s",
    ),
    ("../cli/serve.rs", "const CLOSING: Duration = Duration::from_secs(5)", "one file | 5 s"),
    (
        "../admin/mod.rs",
        "const ENDING: Duration = Duration::from_secs(1)",
        "admin connections | 1 s",
    ),
    ("../telemetry/log.rs", "const TIMEOUT: Duration = Duration::from_secs(2)", "the log | 2 s"),
    ("server/mod.rs", "timeout(Duration::from_secs(1), phase.closed())", "their turn | 1 s"),
    (
        "server/mod.rs",
        "const HANDSHAKE: Duration = Duration::from_secs(10)",
        "client listener | 10 s",
    ),
    ("exchange/retry/judge.rs", "const TIMEOUT: Duration = Duration::from_millis(250)", "| 0.25 s"),
    (
        "http/upstream/limits.rs",
        "FIRST_SIGN: Duration = Duration::from_secs(10)",
        "nothing has come for 6 s | 10 s",
    ),
    (
        "server/mod.rs",
        "const GRACE: Duration = Duration::from_secs(3)",
        "no connection is open | 3 s",
    ),
    (
        "response/tap.rs",
        "const BEFORE_BREAK: Duration = Duration::from_millis(10)",
        "leaves first | 10 ms",
    ),
];

/// The table lists every wait with its default, and the sums.
#[test]
fn table_of_waits_lists_every_wait() {
    let table = std::fs::read_to_string(root().join("docs/waits.md")).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let defaults = serde_json::to_value(plimsoll::config::raw::RawConfig::default()).unwrap();
    let limits = defaults["limits"].as_object().unwrap().iter();
    let mut waits: Vec<(String, u64)> = limits
        .filter(|(key, _)| key.ends_with("_ms") || key.ends_with("_s"))
        .map(|(key, value)| (format!("limits.{key}"), value.as_u64().unwrap()))
        .collect();
    waits.push(("compact.wait_s".into(), defaults["compact"]["wait_s"].as_u64().unwrap()));
    for (key, value) in waits {
        let unit = if key.ends_with("_ms") { "ms" } else { "s" };
        let row = rows.iter().find(|row| row[3] == format!("`{key}`"));
        let row = row.unwrap_or_else(|| panic!("{key} is not among the waits"));
        let documented = row[2].split(',').next().unwrap();
        assert_eq!(documented, format!("{value} {unit}"), "{key}");
    }
    for (file, constant, row) in FIXED_WAITS {
        let code = std::fs::read_to_string(root().join("src/proxy").join(file)).unwrap();
        assert!(code.contains(constant), "{file}: {constant}");
        assert!(table.contains(row), "{row}");
    }
}

/// The store may take its limit, a tenth more, and 64 MiB for its log. Every volume in `deploy/` is large enough.
#[test]
fn store_limit_fits_shipped_volumes() {
    let loaded = config::load(&ConfigSources {
        variables: vec![("HOME".into(), "/home/somebody".into())],
        ..ConfigSources::default()
    });
    let bound = loaded.unwrap().config.retention.bytes;
    let most = bound + bound / 10 + (64 << 20);
    let mut volumes = 0;
    for entry in std::fs::read_dir(root().join("deploy/kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for volume in text.split("- name: plimsoll-data").skip(1) {
            let (_, limit) = volume.split_once("sizeLimit: ").expect("a limit");
            let limit = limit.split('}').next().unwrap().trim();
            let gib: u64 = limit.strip_suffix("Gi").expect("a limit in Gi").parse().unwrap();
            assert!(most <= gib << 30, "{}: {limit} is less than {most} bytes", path.display());
            volumes += 1;
        }
    }
    assert_eq!(volumes, 3);
}

/// The configuration with these variables.
fn with_variables(variables: &[(&str, &str)]) -> config::LoadedConfig {
    let mut all = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
    all.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    config::load(&ConfigSources { variables: all, ..ConfigSources::default() }).unwrap()
}

/// An empty variable sets a list without elements. For any other key it is as if it were not set.
#[test]
fn empty_variable_sets_empty_list() {
    let preset = ("PLIMSOLL_PRESET", "micro-compact");
    let gate =
        |variables: &[(&str, &str)]| with_variables(variables).config.policy.prune.gate.len();
    assert_eq!(gate(&[preset]), 1);
    assert_eq!(gate(&[preset, ("PLIMSOLL_PRUNE_GATE", "")]), 0, "clearing is off");
    assert_eq!(gate(&[preset, ("PLIMSOLL_PRUNE_PLACEHOLDER", "")]), 1);
}

/// Keys that contradict each other: one warning says which wins.
#[test]
fn contradicting_reasoning_keys_are_warning_that_says_which_wins() {
    let excluded = ("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false");
    let but_last = ("PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", "all_but_last");
    let reinjects = ("PLIMSOLL_REASONING_REINJECT", "auto");
    let warnings = |variables: &[(&str, &str)]| with_variables(variables).warnings;
    assert_eq!(warnings(&[excluded]), Vec::<String>::new());
    assert_eq!(warnings(&[but_last]), Vec::<String>::new());
    let [both] = &warnings(&[excluded, but_last])[..] else { panic!("one warning") };
    assert!(both.contains("include_in_context = false wins"), "{both}");
    let [auto] = &warnings(&[excluded, reinjects])[..] else { panic!("one warning") };
    assert!(auto.contains("the keys that remove reasoning win"), "{auto}");
}

/// Beside a preset one message says which key wins; a key that overrides the preset's needs none.
#[test]
fn keys_that_lose_against_preset_are_warning_that_says_which_wins() {
    let warnings = |preset: &str, key: &str, value: &str| {
        with_variables(&[("PLIMSOLL_PRESET", preset), (key, value)]).warnings
    };
    for (preset, key, value, expected) in [
        (
            "gemini-cli",
            "PLIMSOLL_COMPACT_KEEP_MESSAGES",
            "20",
            "compact.keep_messages has no effect, because compact.keep_history is set (preset gemini-cli).",
        ),
        (
            "micro-compact",
            "PLIMSOLL_COMPACT_KEEP_TOKENS",
            "9000",
            "compact.keep_tokens has no effect, because compact.keep_at_least is true (preset micro-compact).",
        ),
        (
            "dexto",
            "PLIMSOLL_PRUNE_PRESSURE",
            "0.5",
            "prune.pressure has no effect, because prune.gate has no `pressure` (preset dexto).",
        ),
        (
            "dexto",
            "PLIMSOLL_REASONING_STRIP_FROM_CONTEXT",
            "all",
            "preset dexto: reasoning.reinject: `auto` puts back only what the provider refuses to \
             miss, because the keys that remove reasoning win.",
        ),
    ] {
        assert_eq!(warnings(preset, key, value), [expected], "{preset}");
    }
    for (preset, key, value) in [
        ("claude-code", "PLIMSOLL_PRUNE_PRESSURE", "0.5"),
        ("micro-compact", "PLIMSOLL_COMPACT_KEEP_MESSAGES", "12"),
        ("micro-compact", "PLIMSOLL_COMPACT_THRESHOLD", "0.5"),
        ("llxprt", "PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", "all"),
    ] {
        assert_eq!(warnings(preset, key, value), Vec::<String>::new(), "{preset} {key}");
    }
}
