//! TLS for the listener: a certificate and its key from two files, which may change while it serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use hone_runtime::Shutdown;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::listen::check_private;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(30);

/// Where certificate and key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate with what leads to its authority, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// When both files were last written.
type Stamp = [Option<SystemTime>; 2];

/// The certificate that is shown at the moment.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    shown: RwLock<(Arc<CertifiedKey>, Stamp)>,
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// A sentence that names the file: it cannot be read, is open to everybody, or does not fit.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, String> {
        let stamp = stamp(&files);
        let pair = read(&files)?;
        Ok(Arc::new(Self {
            files,
            shown: RwLock::new((Arc::new(pair), stamp)),
        }))
    }

    /// Reads both files again; connections that are open keep what they have.
    ///
    /// # Errors
    /// As [`Self::load`]; what was shown goes on.
    pub fn reload(&self) -> Result<(), String> {
        let stamp = stamp(&self.files);
        let pair = read(&self.files);
        let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
        // Also after a failure, which is told once and not at every look.
        shown.1 = stamp;
        shown.0 = Arc::new(pair?);
        Ok(())
    }

    /// Reads the files again if they changed; true if they did.
    ///
    /// # Errors
    /// As [`Self::reload`].
    pub fn look(&self) -> Result<bool, String> {
        let seen = self.shown.read().unwrap_or_else(PoisonError::into_inner).1;
        if seen == stamp(&self.files) {
            return Ok(false);
        }
        self.reload().map(|()| true)
    }

    /// Looks at the files until the stop.
    pub async fn watch(self: Arc<Self>, stop: Shutdown) {
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            match self.look() {
                Ok(false) => {}
                Ok(true) => tracing::info!("the TLS certificate was read again"),
                Err(error) => {
                    tracing::error!(
                        error,
                        "the new TLS certificate was refused; the old one goes on"
                    );
                }
            }
        }
    }

    /// Speaks TLS 1.2 and 1.3 with whatever certificate is shown at the time.
    ///
    /// # Errors
    /// None with the versions that are built in.
    pub fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, String> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS could not be set up: {error}"))?;
        let mut config = config
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Tls {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        Some(shown.0.clone())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn stamp(files: &TlsFiles) -> Stamp {
    let of = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    [of(&files.cert), of(&files.key)]
}

fn read(files: &TlsFiles) -> Result<CertifiedKey, String> {
    let said = |path: &Path, why: &dyn std::fmt::Display| {
        format!(
            "{} cannot be used ({why}); http.tls_cert and http.tls_key name PEM files",
            path.display()
        )
    };
    check_private(&files.key)?;
    let chain = CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain: Vec<CertificateDer<'static>> = chain.map_err(|e| said(&files.cert, &e))?;
    if chain.is_empty() {
        return Err(said(&files.cert, &"it has no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| said(&files.key, &e))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            said(&files.key, &"it is not the key of the certificate")
        }
        other => said(&files.key, &other),
    })
}
