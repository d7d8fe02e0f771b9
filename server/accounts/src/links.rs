//! Invitations: a link that makes one account.

use std::net::IpAddr;

use hone_domain::{Millis, RateLimits, UserRole};
use hone_ledger::{Changed, Invite, PeopleChange, User};
use hone_net::counted;
use serde_json::json;

use crate::Caller;
use crate::Error;
use crate::directory::caller_of;
use crate::error::{secret_error, too_many};
use crate::lock::locked;
use crate::secrets;
use crate::{Directory, Signed, audit};
use hone_domain::LOCAL_OWNER;

/// A fresh invitation.
#[derive(Clone, Debug)]
pub struct Link {
    /// What its link ends with.
    pub token: String,
    /// From when on it is refused.
    pub expires_ms: Millis,
}

/// What a guest fills in.
pub struct Guest {
    /// The link's token.
    pub token: String,
    /// The name of the new account.
    pub name: String,
    /// Its password.
    pub password: String,
}

/// The page's address of an invitation under `base`, such as `http://127.0.0.1:8080`.
pub fn url(base: &str, token: &str) -> String {
    format!("{}/#/invite/{token}", base.trim_end_matches('/'))
}

impl Directory {
    /// Makes an invitation. Whoever invites checks that the role is not above their own.
    pub async fn invite(
        &self,
        caller: &Caller,
        wanted: (UserRole, Option<String>),
    ) -> Result<Link, Error> {
        self.invite_by(caller.owner.clone(), caller, wanted).await
    }

    /// Makes the link of the first start, for an admin. Nobody invites by it, and it is refused once
    /// there is an account.
    pub async fn invite_first(&self) -> Result<Link, Error> {
        let host = Caller {
            owner: LOCAL_OWNER.to_owned(),
            role: UserRole::Admin,
            ..Caller::stranger()
        };
        let nobody = String::new();
        self.invite_by(nobody, &host, (UserRole::Admin, None)).await
    }

    async fn invite_by(
        &self,
        by: String,
        caller: &Caller,
        (role, name): (UserRole, Option<String>),
    ) -> Result<Link, Error> {
        let token = secrets::new_token().map_err(|e| secret_error(&e))?;
        let now_ms = self.now_ms();
        let expires_ms = now_ms + self.config.invite_ms;
        let object = name.clone().unwrap_or_default();
        let detail = json!({"role": role.as_str(), "expires_ms": expires_ms});
        let entry = audit::entry(caller, now_ms, ("invite.make", &object), detail);
        let change = PeopleChange::Invite(Invite {
            token: secrets::digest(&token),
            role,
            name,
            by,
            created_ms: now_ms,
            expires_ms,
        });
        let made = self.change(&change, &entry).await;
        made?;
        Ok(Link { token, expires_ms })
    }

    /// Makes the account that an invitation stands for, and signs it in. `taken` says which names
    /// belong to somebody without an account.
    pub async fn take_invite(
        &self,
        peer: IpAddr,
        guest: Guest,
        taken: impl Fn(&str) -> bool,
    ) -> Result<Signed, Error> {
        let (now_ms, address) = (self.now_ms(), counted(peer));
        let wait_ms = locked(&self.addresses).wait_ms(&address, now_ms);
        if let Some(wait_ms) = wait_ms {
            return Err(too_many(wait_ms));
        }
        let token = secrets::digest(&guest.token);
        let invite = self.store.invite(token).await?;
        let Some(invite) = invite.filter(|invite| invite.expires_ms > now_ms) else {
            locked(&self.addresses).failed(&address, now_ms);
            return Err(used_up());
        };
        if invite.name.as_ref().is_some_and(|name| *name != guest.name) {
            return Err(Error::Invalid {
                param: "name",
                message: "this link is for another name".to_owned(),
            });
        }
        if invite.name.is_none() && taken(&guest.name) {
            return Err(name_taken(&guest.name));
        }
        let user = User {
            password: Some(self.hash_password(guest.password).await?),
            name: guest.name,
            role: invite.role,
            disabled: false,
            limits: RateLimits::default(),
            keeper: None,
            created_ms: now_ms,
            signed_in_ms: None,
        };
        let caller = caller_of(user.clone());
        let detail = json!({"role": user.role.as_str(), "by": invite.by});
        let entry = audit::entry(&caller, now_ms, ("invite.take", &user.name), detail);
        let change = PeopleChange::TakeInvite(token, user.clone());
        match self.change(&change, &entry).await {
            Err(error) => Err(error.into()),
            Ok(Changed::Done) => self.begin_session(user).await,
            Ok(Changed::Taken) => Err(name_taken(&user.name)),
            Ok(Changed::Missing) => Err(used_up()),
        }
    }
}

fn used_up() -> Error {
    Error::NotFound(
        "this link is not valid: it was used, or it is too old, or it was for the first account and there is one, or who made it may not invite any more; ask for another".to_owned(),
    )
}

/// Somebody has this name.
pub fn name_taken(name: &str) -> Error {
    Error::Conflict {
        code: "name_taken",
        message: format!("the name {name} is taken; choose another"),
    }
}
