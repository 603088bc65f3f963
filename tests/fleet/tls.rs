//! Servers that speak TLS and know their users: what is needed to get in, and what is said if it is missing.

use std::sync::Arc;

use plimsoll::store::redis::{RedisServer, RedisStore, ServerTls};
use plimsoll::store::{Record, RecordKind, Scope, Store};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::program::program_at;
use crate::server::{Engine, LIFE, Server};

/// An authority, and a certificate of it for this machine.
struct Papers {
    folder: TempDir,
    authority: String,
}

impl Papers {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority_text = authority.self_signed(&authority_key).unwrap().pem();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = server.signed_by(&key, &issuer).unwrap();
        let write = |name: &str, text: String| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("ca.pem", authority_text.clone());
        write("server.pem", certificate.pem());
        write("server.key", key.serialize_pem());
        Self { folder, authority: authority_text }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Options of a server that only speaks TLS, with a user.
    fn options(&self) -> Vec<String> {
        let files = [
            ("--tls-cert-file", "server.pem"),
            ("--tls-key-file", "server.key"),
            ("--tls-ca-cert-file", "ca.pem"),
        ];
        let mut options: Vec<String> =
            ["--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "no"]
                .map(str::to_owned)
                .into();
        for (option, name) in files {
            options.extend([option.to_owned(), self.path(name)]);
        }
        let user = ["--user", "alice", "on", ">open sesame", "~p:*", "+@all"];
        options.extend(user.map(str::to_owned));
        options.extend(["--user", "default", "off"].map(str::to_owned));
        options
    }

    fn tls(&self) -> ServerTls {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        ServerTls { config, authorities: self.authority.clone().into_bytes().into() }
    }

    async fn server(&self) -> Server {
        let options = self.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Server::with_options(Engine::Redis, &options).await
    }
}

fn with_user(settings: RedisServer, password: &str) -> RedisServer {
    RedisServer { user: Some("alice".into()), password: Some(password.into()), ..settings }
}

#[tokio::test]
async fn users_come_in_by_tls() {
    let papers = Papers::new();
    let server = papers.server().await;
    let tls = Some(papers.tls());
    let settings = with_user(RedisServer { tls, ..server.settings("p:") }, "open sesame");
    let here = Scope { tenant: "t".into(), session: "s".into() };
    let turn = Record { kind: RecordKind::Turn, key: 1, value: "a".into(), at: 10, turn: None };
    let store = RedisStore::new(settings.clone(), LIFE);
    store.put_if_absent(here.clone(), vec![turn.clone()]).await.unwrap();
    assert_eq!(store.scan(here, 9).await.unwrap(), [turn]);
    let why = async |settings: RedisServer| settings.examine().await.unwrap_err().to_string();
    let text = why(with_user(settings.clone(), "wrong")).await;
    assert!(text.contains("does not accept user and password"), "{text}");
    let text = why(RedisServer { prefix: "q:".into(), ..settings.clone() }).await;
    assert!(text.contains("does not let this user run"), "{text}");
    let text = why(RedisServer { tls: None, ..settings }).await;
    assert!(!text.contains('\n'), "{text}");
}

/// What `check` says is one line, and right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_names_what_is_missing() {
    let papers = Papers::new();
    let server = papers.server().await;
    let data = tempfile::tempdir().unwrap();
    let check = async |password: &str, authority: Option<&str>| {
        let url = format!("rediss://alice:{password}@127.0.0.1:{}", server.port);
        let mut check = program_at(&url, data.path());
        if let Some(authority) = authority {
            check.env("PLIMSOLL_EXTRA_CA", papers.path(authority));
        }
        let output = check.env("PLIMSOLL_STORE_PREFIX", "p:").arg("check").output().await.unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), text)
    };
    let (is_usable, text) = check("open sesame", Some("ca.pem")).await;
    assert!(is_usable, "{text}");
    for (password, authority, what) in [
        ("wrong", Some("ca.pem"), "does not accept user and password"),
        ("open sesame", None, "invalid peer certificate: UnknownIssuer"),
    ] {
        let (is_usable, text) = check(password, authority).await;
        assert!(!is_usable);
        assert!(text.contains(what), "{text}");
        assert_eq!(text.trim().lines().count(), 1, "{text}");
        assert!(!text.contains(password), "{text}");
    }
}
