//! The edge of the process: one client for calls to other servers, and the listener for calls from clients.
//!
//! Never: HTTP routes, accounts, who configures it.

mod config;
mod connections;
mod limits;
pub mod listen;
pub mod outbound;
pub mod socket;
mod timed;
pub mod tls;

#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;

use std::net::IpAddr;

pub use config::OutboundConfig;

/// The address that a client is counted by: of IPv6 the network, which one person has as a whole.
pub fn counted(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}
