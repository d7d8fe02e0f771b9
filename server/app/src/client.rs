//! The HTTP client of commands that talk to a running server: where it is, and whom the client trusts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use clap::Args;
use reqwest::{Certificate, ClientBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::config::{Config, Sources};
use hone_api::HttpConfig;

/// Where a command finds the server.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Address {
    /// Address of the server; without it the server of this machine, where http.bind has it
    /// (127.0.0.1:8080, or what HONE__HTTP__BIND says).
    #[arg(long, value_name = "URL", env = "HONE_URL")]
    url: Option<String>,
}

impl Address {
    /// The address, without a slash at its end.
    ///
    /// # Errors
    /// A sentence: what the environment configures is wrong, or does not say.
    pub(crate) fn url(&self) -> Result<String, String> {
        let named = self.url.as_deref().filter(|url| !url.is_empty());
        if let Some(url) = named {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let sources = Sources::read(None, Vec::new()).map_err(|error| error.to_string())?;
        let config = Config::load(&sources).map_err(|error| error.to_string())?;
        bound(&config.http)
    }
}

/// Where a server of this machine with these settings is reached.
fn bound(http: &HttpConfig) -> Result<String, String> {
    let mut address = http.address()?;
    if address.port() == 0 {
        return Err(
            "http.bind takes whatever port is free; --url or HONE_URL says which it was".to_owned(),
        );
    }
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(format!("{}://{address}", http.scheme()))
}

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
    pub fn client(&self) -> Result<ClientBuilder, String> {
        hone_net::outbound::install_tls();
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
        "is the server running? --url or HONE_URL says where"
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
    fn a_server_is_called_where_it_is_bound() {
        let at = |bind: &str| {
            let env = vec![("HONE__HTTP__BIND".to_owned(), bind.to_owned())];
            let sources = Sources {
                env,
                ..Sources::default()
            };
            bound(&Config::load(&sources).unwrap().http)
        };
        for (bind, url) in [
            ("127.0.0.1:9", "http://127.0.0.1:9"),
            ("localhost:9", "http://127.0.0.1:9"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("192.0.2.1:80", "http://192.0.2.1:80"),
        ] {
            assert_eq!(at(bind), Ok(url.to_owned()), "{bind}");
        }
        assert!(at("127.0.0.1:0").unwrap_err().contains("HONE_URL"));
        let named = Address {
            url: Some("https://hone.example/".to_owned()),
        };
        assert_eq!(named.url(), Ok("https://hone.example".to_owned()));
    }

    #[test]
    fn a_file_that_holds_no_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let key = include_str!("../../net/src/fixtures/first.key");
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

#[cfg(test)]
#[path = "client_tests.rs"]
mod tls_tests;
