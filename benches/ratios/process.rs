//! Processes of the benchmark: started, measured by what the kernel says of them, ended by id.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A role of this program in a process of its own.
pub(crate) struct Part {
    child: Child,
    /// `127.0.0.1:port`, where it listens.
    pub(crate) address: String,
    /// What it keeps is removed with it.
    _folder: Option<TempDir>,
}

impl Part {
    /// Starts `role`, which prints its address as its first line.
    pub(crate) fn start(role: &str, args: &[&str]) -> Self {
        Self::start_under(&[], role, args)
    }

    /// The same under a tool, such as a profiler: its program and its arguments.
    pub(crate) fn start_under(tool: &[&str], role: &str, args: &[&str]) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match tool {
            [] => Command::new(program),
            [tool, options @ ..] => {
                let mut command = Command::new(tool);
                command.args(options).arg(program);
                command
            }
        };
        let mut child = command.arg(role).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned(), _folder: None }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another proxy, and how it is started.
pub(crate) struct Peer {
    /// Its program's name.
    pub(crate) name: &'static str,
    pub(crate) args: &'static [&'static str],
    /// The text of the file `FOLDER/peer.conf`.
    pub(crate) configuration: &'static str,
}

impl Peer {
    /// Starts it in front of `provider` and waits for its first answer; `None` if it is not installed.
    pub(crate) fn start(&self, provider: &str) -> Option<Part> {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let filled = |text: &str| {
            let folder = folder.path().to_str().unwrap();
            text.replace("FOLDER", folder).replace("LISTEN", &address).replace("UPSTREAM", provider)
        };
        std::fs::write(folder.path().join("peer.conf"), filled(self.configuration)).unwrap();
        let mut command = Command::new(self.name);
        command.args(self.args.iter().map(|arg| filled(arg)));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        wait_for_answer(&address);
        Some(Part { child, address, _folder: Some(folder) })
    }
}

/// The real binary on a fresh data folder. `PLIMSOLL_BINARY` names another than the one of this build.
pub(crate) struct Plimsoll {
    child: Child,
    /// `127.0.0.1:port`, where clients connect.
    pub(crate) address: String,
    /// `127.0.0.1:port` of its admin listener.
    pub(crate) admin: String,
    /// Seconds from the start of the process to its first answered request.
    pub(crate) first_answer: f64,
    data: Option<TempDir>,
}

impl Plimsoll {
    /// Starts it in front of `provider` and waits for its first answer.
    pub(crate) fn start(provider: &str) -> Self {
        Self::with(provider, "mode = \"observe\"\n")
    }

    /// The same with a configuration of its own.
    pub(crate) fn with(provider: &str, config: &str) -> Self {
        Self::on(tempfile::tempdir().unwrap(), provider, config)
    }

    /// The same on a data folder that may have data.
    pub(crate) fn on(data: TempDir, provider: &str, config: &str) -> Self {
        Self::run(data, config, &["--upstream", &format!("anthropic=http://{provider}")])
    }

    /// The same where the configuration names the upstream.
    pub(crate) fn configured(config: &str) -> Self {
        Self::run(tempfile::tempdir().unwrap(), config, &[])
    }

    fn run(data: TempDir, config: &str, args: &[&str]) -> Self {
        let file = data.path().join("plimsoll.toml");
        std::fs::write(&file, config).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let admin = format!("127.0.0.1:{}", free_port());
        let started = Instant::now();
        let program = std::env::var_os("PLIMSOLL_BINARY");
        let child = Command::new(program.unwrap_or(env!("CARGO_BIN_EXE_plimsoll").into()))
            .args(["serve", "--listen", &address])
            .arg("--config")
            .arg(&file)
            .args(["--admin", &admin])
            .arg("--data")
            .arg(data.path())
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut this = Self { child, address, admin, first_answer: 0.0, data: Some(data) };
        wait_for_answer(&this.address);
        this.first_answer = started.elapsed().as_secs_f64();
        this
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as an operator does; returns its data folder.
    pub(crate) fn stop(mut self) -> TempDir {
        let id = self.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap();
        self.data.take().unwrap()
    }

    /// Resident memory, KiB.
    pub(crate) fn rss_kib(&self) -> f64 {
        rss_kib(self.id())
    }
}

impl Drop for Plimsoll {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU that all threads of a process have used, seconds.
pub(crate) fn cpu_seconds(id: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let nanos = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}

/// Resident memory of a process, KiB.
pub(crate) fn rss_kib(id: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The machine in a few words: cores and load.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown CPU").to_owned();
    format!("{cores} cores of {model}, load {}", load.split(' ').next().unwrap_or("?"))
}

/// A port that nobody uses.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_for_answer(address: &str) {
    let started = Instant::now();
    while !answers(address) {
        assert!(started.elapsed() < Duration::from_secs(20), "no answer at {address}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn answers(address: &str) -> bool {
    use std::io::Write;
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let body = crate::load::SMALL_BODY;
    let request = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Vec::new();
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_end(&mut answer).is_ok()
        && answer.starts_with(b"HTTP/1.1 200")
}
