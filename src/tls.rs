//! TLS: for our listeners (HTTP/2 or HTTP/1.1 by ALPN; the certificate is reloaded when it changes), and towards servers.
//!
//! The files are checked when a client connects, so a renewed certificate applies to the next handshake. New
//! files that cannot be used, or that others may write, never replace a working certificate.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::{Config, Tls, permissions};

/// Accepts TLS connections with the newest usable certificate.
pub struct TlsTerminator {
    files: Tls,
    current: Mutex<LoadedCertificate>,
}

struct LoadedCertificate {
    acceptor: TlsAcceptor,
    /// The state of the files at the last attempt to load them, whether it succeeded or not.
    stamps: FileStamps,
}

/// Enough of the files' metadata to notice a replacement.
type FileStamps = [Option<(SystemTime, u64)>; 2];

impl TlsTerminator {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// If a file cannot be read, or key and certificate do not match.
    pub(crate) fn new(files: &Tls) -> Result<Self, String> {
        let stamps = look(files);
        let acceptor = read(files)?;
        Ok(Self {
            files: files.clone(),
            current: Mutex::new(LoadedCertificate { acceptor, stamps }),
        })
    }

    /// The acceptor for the next handshake.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let stamps = look(&self.files);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.stamps != stamps {
            current.stamps = stamps;
            let judged = permissions::recheck(&self.files);
            match judged.and_then(|warning| Ok((read(&self.files)?, warning))) {
                Ok((acceptor, warning)) => {
                    if let Some(warning) = warning {
                        tracing::warn!("{warning}");
                    }
                    tracing::info!("the listener's certificate was reloaded");
                    current.acceptor = acceptor;
                }
                Err(fault) => {
                    tracing::warn!("{fault}; the listener keeps the certificate it has");
                }
            }
        }
        current.acceptor.clone()
    }
}

fn look(files: &Tls) -> FileStamps {
    [&files.certificate, &files.key].map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

fn read(files: &Tls) -> Result<TlsAcceptor, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&files.certificate)
        .map_err(|error| certificate_fault(&files.certificate, &error))?
        .collect();
    let chain = chain.map_err(|error| certificate_fault(&files.certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| certificate_fault(&files.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| certificate_fault(&files.certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificate_fault(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("listener certificate: {}: {error}", path.display())
}

/// TLS to upstreams and to the store: the system's authorities, bundled ones, and `extra_ca`.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn client_config(config: &Config) -> Result<rustls::ClientConfig, String> {
    client_config_with(config, None)
}

/// As [`client_config`], and the authorities of one more file.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn client_config_with(
    config: &Config,
    more: Option<&Path>,
) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    // A platform without certificates (a scratch image) is fine: there are bundled ones.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = &config.extra_ca {
        add_certificates(&mut roots, path)
            .map_err(|error| format!("extra_ca {}: {error}", path.display()))?;
    }
    if let Some(path) = more {
        add_certificates(&mut roots, path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The system's authorities and `extra_ca`, PEM: for connections that are not opened here.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn authorities(config: &Config) -> Result<Vec<u8>, String> {
    let mut pem = Vec::new();
    let mut readable = rustls::RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        if readable.add(certificate.clone()).is_err() {
            continue;
        }
        pem.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
        pem.extend_from_slice(BASE64_STANDARD.encode(certificate).as_bytes());
        pem.extend_from_slice(b"\n-----END CERTIFICATE-----\n");
    }
    if let Some(path) = &config.extra_ca {
        let more =
            std::fs::read(path).map_err(|error| format!("extra_ca {}: {error}", path.display()))?;
        pem.extend_from_slice(&more);
    }
    Ok(pem)
}

fn add_certificates(
    roots: &mut rustls::RootCertStore,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    for certificate in CertificateDer::pem_file_iter(path)? {
        roots.add(certificate?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn renewed_files_that_others_may_write_do_not_replace_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = Tls { certificate: path("cert.pem"), key: path("key.pem") };
        let renew = |mode: u32| {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
            // Longer each time, so that the change is noticed even if the clock does not show it.
            let chain = format!("{chain}{}", "\n".repeat(mode as usize));
            for (file, text) in [(&files.certificate, chain), (&files.key, key)] {
                std::fs::write(file, text).unwrap();
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(file, mode).unwrap();
            }
        };
        renew(0o600);
        let terminator = TlsTerminator::new(&files).unwrap();
        let first = terminator.acceptor();
        renew(0o666);
        assert!(Arc::ptr_eq(terminator.acceptor().config(), first.config()), "others may write it");
        renew(0o640);
        assert!(!Arc::ptr_eq(terminator.acceptor().config(), first.config()), "it is renewed");
    }
}
