//! Answers in the forms that those who ask can take.

use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use tidelock_api::Time;
use tidelock_api::monitor::{
    AccountDetail, AccountDetailJs, AccountStatz, Accountz, Connz, Healthz, Jsz, Leafz, Routez, Statsz,
    Subsz, Varz,
};
use tidelock_api::{to_json, to_json_pretty};

use crate::worker::Answer;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// The object that answers a question; its JSON is that of the object itself.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Body {
    /// `varz`
    Varz(Box<Varz>),
    /// `connz`
    Connz(Connz),
    /// `routez`
    Routez(Routez),
    /// `gatewayz`
    Gatewayz(Gatewayz),
    /// `leafz`
    Leafz(Leafz),
    /// `subsz`
    Subsz(Subsz),
    /// `accountz`
    Accountz(Box<Accountz>),
    /// `accstatz`
    Accstatz(AccountStatz),
    /// `jsz`
    Jsz(Box<Jsz>),
    /// `raftz`
    Raftz(BTreeMap<String, BTreeMap<String, super::jetstream::RaftGroup>>),
    /// What has nothing in it.
    Nothing(BTreeMap<String, u64>),
    /// `ACCOUNT.<name>.INFO`
    Account(Box<AccountDetail>),
    /// `ACCOUNT.<name>.JSZ`
    AccountJs(Box<AccountDetailJs>),
}

/// Gateways: there are none.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Gatewayz {
    /// Id of the server.
    pub(crate) server_id: String,
    /// When this was written.
    pub(crate) now: Time,
    /// Gateways that this server opened.
    pub(crate) outbound_gateways: BTreeMap<String, u64>,
    /// Gateways that others opened.
    pub(crate) inbound_gateways: BTreeMap<String, u64>,
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// An object.
    Body(Body),
    /// Whether the server is well; the status is in it.
    Health(Healthz),
    /// The short figures, which have an envelope of their own.
    Stats(Box<Statsz>),
    /// Who the server is; no envelope.
    Id,
    /// The page that links the endpoints.
    Page(String),
    /// It cannot be answered: HTTP status and text.
    Fault(u16, String),
    /// It is done and there is nothing to say.
    Done,
    /// Whoever asked gets no answer.
    Silence,
    /// Only the leader of the metadata was asked, which is another server: it answers requests, and a browser is told.
    NotLeader,
}

/// The answer as HTTP sees it.
pub(crate) fn http(reply: Reply) -> Answer {
    match reply {
        Reply::Body(Body::Raftz(groups)) if groups.is_empty() => text(404, "No Raft nodes registered"),
        Reply::Body(Body::Nothing(empty)) => json(200, to_json(&empty)),
        Reply::Body(body) => json(200, to_json_pretty(&body)),
        Reply::Health(health) => {
            let status = health.status_code;
            json(
                status,
                to_json(&Healthz {
                    status_code: 0,
                    ..health
                }),
            )
        }
        Reply::Page(page) => Answer {
            status: 200,
            content_type: HTML,
            body: page.into(),
        },
        Reply::Fault(status, reason) => text(status, &reason),
        Reply::NotLeader => text(400, "filtered response: not leader"),
        Reply::Stats(_) | Reply::Id | Reply::Done | Reply::Silence => not_found(),
    }
}

/// There is no such endpoint.
pub(crate) fn not_found() -> Answer {
    text(404, "404 page not found\n")
}

/// A plain text.
pub(crate) fn text(status: u16, text: &str) -> Answer {
    Answer {
        status,
        content_type: TEXT,
        body: Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn json(status: u16, body: Vec<u8>) -> Answer {
    Answer {
        status,
        content_type: JSON,
        body: body.into(),
    }
}

/// The page that links the endpoints.
pub(crate) fn page(version: &str) -> String {
    const ENDPOINTS: [(&str, &str); 10] = [
        ("varz", "General"),
        ("jsz", "JetStream"),
        ("connz", "Connections"),
        ("accountz", "Accounts"),
        ("accstatz", "Account Stats"),
        ("subsz", "Subscriptions"),
        ("routez", "Routes"),
        ("leafz", "LeafNodes"),
        ("gatewayz", "Gateways"),
        ("raftz", "Raft Groups"),
    ];
    let mut page = format!(
        "<html lang=\"en\">\n\t<head><title>Tidelock</title></head>\n\t<body>\n\t<h1>Tidelock</h1>\n\t<p>v{version}</p>\n"
    );
    for (path, title) in ENDPOINTS.iter().chain(&[("healthz", "Health Probe")]) {
        page.push_str(&format!("\t<a href=./{path}>{title}</a><br/>\n"));
    }
    page.push_str("\t</body>\n</html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through HTTP there is always an answer, also where requests to all servers are left to others.
    #[test]
    fn a_server_that_does_not_lead_says_so_to_a_browser() {
        let answer = http(Reply::NotLeader);
        assert_eq!(
            (answer.status, &answer.body[..]),
            (400, &b"filtered response: not leader"[..])
        );
    }
}
