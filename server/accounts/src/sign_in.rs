//! Signing in: names and passwords, and how many wrong ones somebody may send.
//!
//! Tries are counted by name and place. A place is an address or, where somebody signed in before, their
//! device, which a cookie names: behind a proxy that nobody named all addresses are the proxy's, and guesses of
//! strangers would lock out everybody.

use std::net::IpAddr;

use hone_domain::Digest;
use hone_ledger::AuditEntry;
use hone_net::counted;
use serde_json::json;

use crate::error::{too_many, wrong_password};
use crate::lock::locked;
use crate::login_throttle::Place;
use crate::names::{is_name, shown};
use crate::{Directory, Error, Signed, secrets};

impl Directory {
    /// Checks name and password and signs in. `device` is the cookie that a sign-in before left.
    pub async fn sign_in(
        &self,
        (peer, device): (IpAddr, Option<&str>),
        (name, password): (&str, String),
    ) -> Result<Signed, Error> {
        // Texts that are no names of accounts are counted as one, however long and many they are.
        let tried = if is_name(name) { name } else { "" }.to_owned();
        let place = match self.device(&tried, device).await? {
            Some(device) => Place::Device(device),
            None => Place::Address(counted(peer)),
        };
        let is_full = self.count_try(&tried, place, peer)?;
        let found = self.user_with(name, password).await;
        if !matches!(found, Ok(None)) {
            self.take_back((&tried, place));
        }
        let Some(user) = found? else {
            if is_full {
                self.note_blocked(name, peer).await?;
            }
            return Err(wrong_password());
        };
        locked(&self.names).succeeded(&(tried.clone(), place));
        self.welcome_from((tried, counted(peer)));
        self.begin_session(user).await
    }

    /// Counts a try before its password is looked at, which takes a while: others try meanwhile. True for the
    /// one that fills a window.
    fn count_try(&self, tried: &str, place: Place, peer: IpAddr) -> Result<bool, Error> {
        let now_ms = self.now_ms();
        let here = (tried.to_owned(), place);
        let mut wait_ms = locked(&self.names).wait_ms(&here, now_ms);
        if let Place::Address(address) = place {
            // Whoever signed in from this address before is not kept out by what others try elsewhere, and
            // neither is who sits at this machine.
            let is_known = peer.to_canonical().is_loopback()
                || locked(&self.welcome).contains(&(here.0.clone(), address));
            let everywhere = locked(&self.everywhere).wait_ms(&here.0, now_ms);
            wait_ms = wait_ms
                .max(locked(&self.addresses).wait_ms(&address, now_ms))
                .max(everywhere.filter(|_| !is_known));
        }
        if let Some(wait_ms) = wait_ms {
            return Err(too_many(wait_ms));
        }
        let mut is_full = locked(&self.names).failed(&here, now_ms);
        if let Place::Address(address) = place {
            is_full |= locked(&self.addresses).failed(&address, now_ms);
            is_full |= locked(&self.everywhere).failed(&here.0, now_ms);
        }
        Ok(is_full)
    }

    /// Takes back a try that was counted.
    fn take_back(&self, (tried, place): (&str, Place)) {
        let here = (tried.to_owned(), place);
        locked(&self.names).take_back(&here);
        if let Place::Address(address) = place {
            locked(&self.addresses).take_back(&address);
            locked(&self.everywhere).take_back(&here.0);
        }
    }

    async fn note_blocked(&self, name: &str, peer: IpAddr) -> Result<(), Error> {
        let entry = AuditEntry {
            at_ms: self.now_ms(),
            actor: String::new(),
            act: "sign_in.blocked".to_owned(),
            object: shown(name),
            detail: json!({"address": counted(peer).to_string()}),
        };
        let noted = self.store.record(&entry).await;
        Ok(noted.map(drop)?)
    }

    /// The device that a cookie names, where somebody signed in on it under that name and with the password
    /// that the account still has.
    async fn device(&self, name: &str, cookie: Option<&str>) -> Result<Option<Digest>, Error> {
        let Some(cookie) = cookie else {
            return Ok(None);
        };
        let user = self.store.user(name).await?;
        let user = user.filter(|user| !user.disabled);
        Ok(user.and_then(|user| secrets::device_of(&user, cookie)))
    }

    /// Remembers who signed in from where.
    fn welcome_from(&self, here: (String, IpAddr)) {
        let mut welcome = locked(&self.welcome);
        if welcome.len() >= self.config.remembered_max {
            welcome.clear();
        }
        welcome.insert(here);
    }
}
