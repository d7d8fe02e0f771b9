//! The HTTP client of commands that talk to a running server, with whom it trusts.

use std::path::{Path, PathBuf};

use clap::Args;
use reqwest::{Certificate, ClientBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Whom a command trusts to be the server.
#[derive(Clone, Debug, Default, Args)]
pub struct Trust {
    /// Trust the certificates in this file (PEM) instead of the system's: for a server whose
    /// certificate a private authority signed.
    #[arg(long, value_name = "FILE", env = "HONE_CACERT")]
    cacert: Option<PathBuf>,
}

impl Trust {
    /// A client to be, without deadline and without proxy.
    ///
    /// # Errors
    /// A sentence that names the file of certificates.
    pub(crate) fn client(&self) -> Result<ClientBuilder, String> {
        crate::outbound::install_tls();
        let client = reqwest::Client::builder().no_proxy();
        let Some(file) = &self.cacert else {
            return Ok(client);
        };
        let roots = certificates(file)
            .map_err(|why| format!("--cacert {} cannot be used: {why}", file.display()))?;
        Ok(client.tls_certs_only(roots))
    }
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, String> {
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    let roots = CertificateDer::pem_slice_iter(&text).map(|found| {
        let der = found.map_err(|error| format!("it is not PEM ({error})"))?;
        Certificate::from_der(&der).map_err(|error| error.to_string())
    });
    let roots: Vec<Certificate> = roots.collect::<Result<_, _>>()?;
    if roots.is_empty() {
        return Err("it holds no certificate (-----BEGIN CERTIFICATE-----)".to_owned());
    }
    Ok(roots)
}

/// Why nothing came back from `url`, and what to do: the outermost error says little ("error sending
/// request").
pub(crate) fn unreachable(url: &str, error: reqwest::Error) -> String {
    let causes = format!("{:#}", anyhow::Error::from(error.without_url()));
    let todo = if causes.contains("CaUsedAsEndEntity") {
        "the server's certificate says that it is an authority's, and no server may show such a one; \
         make it with basicConstraints=CA:FALSE"
    } else if causes.contains("certificate") {
        "--cacert names a file with the certificate of the authority that signed the server's"
    } else if url.starts_with("http://") || url.starts_with("https://") {
        "is the server running? --url says where"
    } else {
        "--url begins with http:// or https://"
    };
    format!("{url} cannot be reached ({causes}); {todo}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        trust: Trust,
    }

    fn trust(file: &Path) -> Trust {
        Line::parse_from(["x".as_ref(), "--cacert".as_ref(), file.as_os_str()]).trust
    }

    #[test]
    fn a_file_that_holds_no_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let key = include_str!("http/fixtures/first.key");
        let cut = "-----BEGIN CERTIFICATE-----\nMIIB\n";
        for (name, text, why) in [
            ("empty.pem", "", "it holds no certificate"),
            ("key.pem", key, "it holds no certificate"),
            ("cut.pem", cut, "it is not PEM"),
        ] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            let told = trust(&file).client().unwrap_err();
            assert!(told.contains(name) && told.contains(why), "{told}");
        }
        let absent = trust(&folder.path().join("absent.pem")).client();
        assert!(absent.unwrap_err().contains("absent.pem"));
    }
}
