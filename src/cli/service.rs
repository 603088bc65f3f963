//! `plimsoll service install|remove`: a file for the user's own service manager.
//!
//! Starts and stops nothing. A file that is not ours is neither replaced nor removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::clients::{self, Environment};
use super::flags::ConfigFlags;
use super::print::{self, CliError};
use crate::store::folder::write_whole;

/// In the first lines of our files.
const MARK: &str = "Written by `plimsoll service install`";

/// What is to be done.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum ServiceCommand {
    /// Write the file, and print how to start the service.
    Install {
        #[command(flatten)]
        settings: Box<ConfigFlags>,
        /// The service manager [default: this system's].
        #[arg(long)]
        manager: Option<InitSystem>,
    },
    /// Remove the file.
    Remove {
        /// The service manager [default: this system's].
        #[arg(long)]
        manager: Option<InitSystem>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum InitSystem {
    /// A user unit of systemd.
    Systemd,
    /// A user agent of launchd.
    Launchd,
}

impl InitSystem {
    fn of_system() -> Self {
        if cfg!(target_os = "macos") { Self::Launchd } else { Self::Systemd }
    }

    fn file(self, environment: &Environment) -> Result<PathBuf, CliError> {
        let home = environment.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let home = home.ok_or_else(|| CliError("there is no HOME".to_owned()))?;
        Ok(match self {
            Self::Systemd => {
                let moved = environment.get("XDG_CONFIG_HOME").map(PathBuf::from);
                let folder = moved.filter(|folder| folder.is_absolute());
                let folder = folder.unwrap_or_else(|| home.join(".config"));
                folder.join("systemd/user/plimsoll.service")
            }
            Self::Launchd => home.join("Library/LaunchAgents/plimsoll.plist"),
        })
    }

    fn text(self, command: &[String]) -> String {
        match self {
            Self::Systemd => {
                let words: Vec<String> = command.iter().map(|word| quoted_for_unit(word)).collect();
                format!(
                    "# {MARK}.\n[Unit]\nDescription=Plimsoll, a proxy for LLM APIs\n\n[Service]\nExecStart={}\n\
                     ExecReload=kill -HUP $MAINPID\nRestart=on-failure\n# Longer than limits.drain_s, so that streams can \
                     finish.\nTimeoutStopSec=45\nLimitNOFILE=16384\nNoNewPrivileges=yes\nUMask=0077\n\n[Install]\n\
                     WantedBy=default.target\n",
                    words.join(" ")
                )
            }
            Self::Launchd => {
                let words: String = command
                    .iter()
                    .map(|word| format!("    <string>{}</string>\n", escaped_for_xml(word)))
                    .collect();
                format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- {MARK}. -->\n<!DOCTYPE plist PUBLIC \"-//Apple//DTD \
                     PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n<plist version=\"1.0\">\n<dict>\n  \
                     <key>Label</key>\n  <string>plimsoll</string>\n  <key>ProgramArguments</key>\n  <array>\n{words}  \
                     </array>\n  <key>RunAtLoad</key>\n  <true/>\n  <key>KeepAlive</key>\n  <dict>\n    \
                     <key>SuccessfulExit</key>\n    <false/>\n  </dict>\n  <key>ExitTimeOut</key>\n  \
                     <integer>45</integer>\n</dict>\n</plist>\n"
                )
            }
        }
    }

    fn start(self, file: &Path) -> String {
        match self {
            Self::Systemd => {
                "systemctl --user daemon-reload && systemctl --user enable --now plimsoll"
                    .to_owned()
            }
            Self::Launchd => format!("launchctl bootstrap gui/$(id -u) {}", file.display()),
        }
    }

    fn stop(self) -> &'static str {
        match self {
            Self::Systemd => "systemctl --user disable --now plimsoll",
            Self::Launchd => "launchctl bootout gui/$(id -u)/plimsoll",
        }
    }
}

pub(super) fn run(command: &ServiceCommand) -> Result<(), CliError> {
    let environment = clients::environment();
    match command {
        ServiceCommand::Install { settings, manager } => {
            let manager = manager.unwrap_or_else(InitSystem::of_system);
            let file = manager.file(&environment)?;
            // A service whose configuration is wrong would only be restarted.
            crate::config::load_for_query(&settings.sources())?;
            let program = std::env::current_exe()?;
            let mut words = vec![word(&program)?, "serve".to_owned()];
            words.extend(flags(settings)?);
            belongs_to_us(&file)?;
            write_whole(&file, manager.text(&words).as_bytes())?;
            print::line(&format!("{} is written. Start it:", file.display()));
            print::line(&manager.start(&file));
            print::note(
                "it has none of this terminal's variables: credentials of upstreams belong in files",
            );
        }
        ServiceCommand::Remove { manager } => {
            let manager = manager.unwrap_or_else(InitSystem::of_system);
            let file = manager.file(&environment)?;
            if !belongs_to_us(&file)? {
                return Err(CliError(format!("{} is not there", file.display())));
            }
            fs::remove_file(&file)?;
            print::line(&format!("{} is removed. If it still runs:", file.display()));
            print::line(manager.stop());
        }
    }
    Ok(())
}

/// Whether there is a file of ours; an error if there is somebody else's.
fn belongs_to_us(file: &Path) -> Result<bool, CliError> {
    match fs::read_to_string(file) {
        Ok(text) if text.lines().take(2).any(|line| line.contains(MARK)) => Ok(true),
        Ok(_) => Err(CliError(format!("{} is not ours; it stays", file.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(CliError(format!("{}: {error}", file.display()))),
    }
}

/// The flags for `serve`, with absolute paths.
fn flags(settings: &ConfigFlags) -> Result<Vec<String>, CliError> {
    let mut words = Vec::new();
    if let Some(file) = &settings.config {
        words.extend(["--config".to_owned(), word(&std::path::absolute(file)?)?]);
    }
    for flag in settings.sources().flags {
        let value = match &*flag.key {
            "data" => word(&std::path::absolute(&flag.value)?)?,
            _ => flag.value,
        };
        words.extend([flag.name, value]);
    }
    Ok(words)
}

fn word(path: &Path) -> Result<String, CliError> {
    let text = path.to_str().filter(|text| !text.contains(['\n', '\r']));
    text.map(str::to_owned).ok_or_else(|| CliError(format!("{} is no text", path.display())))
}

fn quoted_for_unit(word: &str) -> String {
    // As systemd.service(5) reads it: `%` and `$` have a meaning, and spaces separate.
    let word =
        word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{word}\"")
}

fn escaped_for_xml(word: &str) -> String {
    word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_escaped() {
        let words = ["/a b/50%$x\"".to_owned(), "<&>".to_owned()];
        let unit = InitSystem::Systemd.text(&words);
        assert!(unit.contains("ExecStart=\"/a b/50%%$$x\\\"\" \"<&>\"\n"), "{unit}");
        let plist = InitSystem::Launchd.text(&words);
        assert!(plist.contains("<string>&lt;&amp;&gt;</string>"), "{plist}");
    }
}
