//! Which addresses may be called.
//!
//! A name is looked up once, every address is judged, and the connection is made to what was judged,
//! so a name that means something else a moment later changes nothing. Addresses of the public
//! internet are open. Those of this machine and of private networks are open where the configuration
//! names them: written as an address (or `localhost`) in the URL itself, or in `outbound.allow`.
//! Link-local addresses, among them every cloud's metadata service, need `outbound.allow`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Looks up names.
#[async_trait]
pub trait Names: Send + Sync {
    /// Every address of a name.
    async fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
pub struct SystemNames;

#[async_trait]
impl Names for SystemNames {
    async fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// What `outbound.allow` opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    names: Vec<String>,
    networks: Vec<IpNet>,
}

impl Allowed {
    /// Reads host names, addresses and networks such as `10.1.0.0/16`.
    ///
    /// # Errors
    /// A sentence that names the entry.
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        let mut allowed = Self::default();
        for entry in entries {
            let network = entry.parse::<IpNet>();
            let network = network.or_else(|_| entry.parse().map(IpAddr::into));
            match network {
                Ok(network) => allowed.networks.push(network),
                Err(_) if is_name(entry) => allowed.names.push(entry.to_ascii_lowercase()),
                Err(_) => return Err(unreadable(entry)),
            }
        }
        Ok(allowed)
    }

    fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|n| n.eq_ignore_ascii_case(name))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
    !text.is_empty() && text.chars().all(fits) && text.chars().any(|c| c.is_ascii_alphabetic())
}

fn unreadable(entry: &str) -> String {
    format!(
        "outbound.allow names {entry:?}, which is no host name, address or network; write judge.example, 10.1.2.3 or 10.1.0.0/16"
    )
}

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realm {
    /// The public internet.
    Public,
    /// This machine.
    Here,
    /// A private network.
    Private,
    /// The link, among it the metadata service of clouds.
    Link,
    /// Nothing that can be called.
    Nowhere,
}

/// Metadata services that have an address outside the link-local networks.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254)),
];

/// What an address belongs to. One that carries an IPv4 address inside is what that one is.
pub fn realm(address: IpAddr) -> Realm {
    if METADATA.contains(&address) {
        return Realm::Link;
    }
    match address {
        IpAddr::V4(v4) => realm_v4(v4),
        IpAddr::V6(v6) => inner_v4(v6).map_or_else(|| realm_v6(v6), |v4| realm(v4.into())),
    }
}

fn realm_v4(address: Ipv4Addr) -> Realm {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (127, ..) => Realm::Here,
        (10, ..) | (192, 168, _) | (172, 16..=31, _) | (100, 64..=127, _) => Realm::Private,
        (169, 254, _) => Realm::Link,
        (0 | 224..=255, ..) | (192, 0, 0 | 2) | (198, 18 | 19, _) => Realm::Nowhere,
        (198, 51, 100) | (203, 0, 113) => Realm::Nowhere,
        _ => Realm::Public,
    }
}

fn realm_v6(address: Ipv6Addr) -> Realm {
    let parts = address.segments();
    match parts[0] {
        _ if address.is_loopback() => Realm::Here,
        0xfc00..=0xfdff => Realm::Private,
        0xfe80..=0xfebf => Realm::Link,
        // Global unicast without documentation (2001:db8::) and Teredo (2001::).
        0x2001 if [0, 0x0db8].contains(&parts[1]) => Realm::Nowhere,
        0x2000..=0x3fff => Realm::Public,
        _ => Realm::Nowhere,
    }
}

/// The IPv4 address that mapped, translated (64:ff9b::/96) and 6to4 addresses stand for.
fn inner_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(of(high, low))
        }
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

/// Whether a name is one that means this machine everywhere.
pub fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// Judges addresses; the resolver of the one client.
#[derive(Clone)]
pub struct Guard {
    names: Arc<dyn Names>,
    allowed: Arc<Allowed>,
}

impl Guard {
    /// A guard that looks names up there.
    pub fn new(names: Arc<dyn Names>, allowed: Allowed) -> Self {
        Self {
            names,
            allowed: Arc::new(allowed),
        }
    }

    /// Judges the host of a URL as far as that is possible without looking it up.
    ///
    /// # Errors
    /// Why it may not be called, and what to do.
    pub fn check_host(&self, host: &str) -> Result<(), String> {
        match host.trim_matches(['[', ']']).parse() {
            Ok(address) => self.check(host, address, true),
            Err(_) => Ok(()),
        }
    }

    /// Judges the host that another server redirects to. Nobody wrote that into the configuration, so
    /// it is open only where its address is public or `outbound.allow` names it.
    ///
    /// # Errors
    /// Why it may not be called, and what to do.
    pub fn check_redirect(&self, host: &str) -> Result<(), String> {
        let name = host.trim_matches(['[', ']']);
        if let Ok(address) = name.parse() {
            return self.check(name, address, false);
        }
        if is_localhost(name) && !self.allowed.has_name(name) {
            return self.check(name, IpAddr::V4(Ipv4Addr::UNSPECIFIED), true);
        }
        Ok(())
    }

    /// Judges one address of a host; `written` if the URL has the address itself.
    fn check(&self, host: &str, address: IpAddr, written: bool) -> Result<(), String> {
        let realm = realm(address);
        let listed = self.allowed.has_name(host) || self.allowed.has_address(address);
        let open = match realm {
            Realm::Public => true,
            Realm::Here => written || is_localhost(host) || listed,
            Realm::Private => written || listed,
            Realm::Link => listed,
            Realm::Nowhere => false,
        };
        if open {
            return Ok(());
        }
        let what = match realm {
            Realm::Here => "an address of this machine",
            Realm::Private => "an address of a private network",
            Realm::Link => "a link-local address, where clouds keep their metadata service",
            Realm::Public | Realm::Nowhere => "an address that cannot be called",
        };
        let found = if written { "is" } else { "is at" };
        let remedy = match realm {
            Realm::Nowhere => String::new(),
            _ => format!("; add {host:?} to outbound.allow if that is meant"),
        };
        let shown = if written {
            String::new()
        } else {
            format!("{address}, ")
        };
        Err(format!("{host} {found} {shown}{what}{remedy}"))
    }

    /// Looks a name up; what is left are addresses that may be called.
    async fn sift(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let found = self.names.look_up(name).await;
        let found = found.map_err(|error| format!("{name} cannot be looked up ({error})"))?;
        let mut refused = format!("{name} has no address");
        let mut open = Vec::new();
        for address in found {
            match self.check(name, address, false) {
                Ok(()) => open.push(address),
                Err(why) => refused = why,
            }
        }
        if open.is_empty() {
            Err(refused)
        } else {
            Ok(open)
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let open = guard.sift(name.as_str()).await?;
            // Port 0 stands for the URL's.
            let addresses = open.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}
