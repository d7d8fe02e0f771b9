//! Bounds of the listener.

use std::time::Duration;

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub struct ListenLimits {
    /// Most connections at once. A further one takes the place of an idle one, or waits.
    pub connections_max: usize,
    /// Most connections of one address, loopback aside. A further one takes the place of an idle one of
    /// the address, or is closed. 0 is no limit.
    pub per_address_max: usize,
    /// How long a connection may take to send a request's headers, counted from their first byte; and
    /// until the first byte of its first request.
    pub header_timeout: Duration,
    /// How long a connection may wait between two requests.
    pub idle_timeout: Duration,
    /// How long a client may take nothing while there is something to send.
    pub write_timeout: Duration,
}
