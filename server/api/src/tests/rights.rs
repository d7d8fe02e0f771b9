//! Walks every route of the router as everybody.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::body::Body;
use axum::http::Method;
use hone_domain::UserRole;
use serde_json::Value;

use crate::rights::{HasRights as _, Right};
use crate::testing::{Recorder, Stage, read, request, rights, route_table};
use hone_accounts::{AuthMethod, Caller};

/// Served without being part of the API that the document describes.
const UNDOCUMENTED: &[&str] = &["/openapi.json", "/", "/assets/{*path}"];

/// Who may pass, written down: nobody, user, developer, auditor, admin.
fn passes(right: Right) -> [bool; 5] {
    match right {
        Right::Open => [true, true, true, true, true],
        Right::User => [false, true, true, true, true],
        Right::Developer => [false, false, true, false, true],
        Right::AdminRead => [false, false, false, true, true],
        Right::AdminWrite => [false, false, false, false, true],
    }
}

#[test]
fn roles_have_the_rights_that_are_written_down() {
    let rights = [
        Right::Open,
        Right::User,
        Right::Developer,
        Right::AdminRead,
        Right::AdminWrite,
    ];
    for right in rights {
        let [_, user, developer, auditor, admin] = passes(right);
        let rows = [
            (UserRole::User, user),
            (UserRole::Developer, developer),
            (UserRole::Auditor, auditor),
            (UserRole::Admin, admin),
        ];
        for (role, expected) in rows {
            let caller = Caller {
                role,
                via: AuthMethod::Key,
                ..Caller::stranger()
            };
            assert_eq!(caller.may(right), expected, "{role:?} {right:?}");
        }
    }
}

#[test]
fn the_table_is_consistent() {
    let mut seen = BTreeSet::new();
    for (method, path, right) in &rights() {
        assert!(
            seen.insert((method.clone(), path.clone())),
            "{method} {path} has two rows"
        );
        let is_read = *method == "GET";
        if path.starts_with("/admin") {
            let wanted = if is_read {
                Right::AdminRead
            } else {
                Right::AdminWrite
            };
            assert_eq!(*right, wanted, "{method} {path}");
        }
        let is_data = path.starts_with("/v1/") && !path.starts_with("/v1/auth/");
        assert!(
            !(is_data && *right == Right::Open),
            "{method} {path} is open"
        );
    }
    let table = route_table();
    let needed = |method, path| table.rule(&method, path).map(|rule| rule.right);
    assert!(needed(Method::GET, Some("/v1/forgotten")).is_err());
    assert!(needed(Method::DELETE, Some("/v1/feedback")).is_err());
    assert_eq!(needed(Method::HEAD, Some("/livez")), Ok(Right::Open));
    assert_eq!(needed(Method::GET, None), Ok(Right::User));
}

/// Every route of the document with the path as the router has it.
async fn documented(stage: &Stage) -> BTreeSet<(String, String)> {
    let document = stage.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    let rows = paths.iter().flat_map(|(path, item)| {
        let path = path.replace("/v1/models/{id}", "/v1/models/{*id}");
        let methods = item.as_object().unwrap().keys();
        methods.map(move |method| (method.to_uppercase(), path.clone()))
    });
    rows.collect()
}

#[tokio::test]
async fn every_route_has_a_row_and_every_row_a_route() {
    let stage = Stage::new(Recorder::Collects).await;
    let rows: BTreeSet<(String, String)> = rights()
        .into_iter()
        .filter(|(_, path, _)| !UNDOCUMENTED.contains(&path.as_str()))
        .map(|(method, path, _)| (method, path))
        .collect();
    assert_eq!(rows, documented(&stage).await);
}

#[tokio::test]
async fn every_route_lets_in_whom_the_table_names() {
    let stage = Stage::new(Recorder::Collects).await;
    let stranger: IpAddr = [10, 0, 0, 9].into();
    let callers = ["", "user-a", "developer", "auditor", "admin"];
    for (method, path, right) in &rights() {
        let path = path
            .replace("{*id}", "x")
            .replace("{*path}", "x")
            .replace("{id}", "x");
        let path = path
            .replace("{name}", "judge")
            .replace("{member}", "x")
            .replace("{task}", "x");
        for (caller, expected) in callers.into_iter().zip(passes(*right)) {
            let bearer = format!("Bearer {caller}");
            let headers = match caller {
                "" => vec![],
                _ => vec![("authorization", bearer.as_str())],
            };
            let request = request(method, &path, &headers).body(Body::empty());
            let response = stage.send_from(stranger, request.unwrap()).await;
            let status = response.status().as_u16();
            // An endless reply has said enough by its status.
            let code = match status {
                200 => String::new(),
                _ => {
                    let text = read(response).await.text;
                    let body: Value = serde_json::from_str(&text).unwrap_or_default();
                    body["error"]["code"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned()
                }
            };
            let refused = status == 401 || code == "not_allowed" || code == "no_right";
            assert_eq!(
                !refused, expected,
                "{method} {path} as {caller:?}: {status} {code}"
            );
            if refused {
                let wanted = if caller.is_empty() { 401 } else { 403 };
                assert_eq!(status, wanted, "{method} {path} as {caller:?}");
            }
        }
    }
}
