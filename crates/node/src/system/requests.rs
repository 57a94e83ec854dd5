//! Requests to the system account (`$SYS.REQ.…`), and the few that every account may make of it for itself.
//!
//! A request is noted while its message is routed and answered at the end of the turn. Every node of the cluster
//! gets those that name no server and answers for itself, unless a filter in the body leaves it out.

use super::topic::Topic;
use crate::cell::InterestDelta;
use crate::deliver_batch::Message;
use crate::interest::{Change, ConnKey, Service, Target};
use crate::shared::{Account, NodeShared};
use crate::worker::{Core, QueryId, Worker};
use std::sync::Arc;
use tidelock_api::event::{
    Permissions, ResponsePermission, SubjectPermission, UserInfo, system_error, system_reply,
};
use tidelock_api::monitor::{
    AccountStatzOptions, AccountzOptions, ClientRequest, ConnzOptions, EventFilter, HealthzOptions,
    JszOptions, RaftzOptions, RoutezOptions, SubszOptions,
};
use tidelock_api::{Decode, DecodeError, Nanos, decode_lenient};
use tidelock_auth::{SubjectRules, hash8};
use tidelock_base::AccountId;
use tidelock_session::Identity;

/// What a server is asked, by its id or with all others (`PING`).
const SERVER_NAMES: [&str; 13] = [
    "IDZ",
    "STATSZ",
    "VARZ",
    "SUBSZ",
    "CONNZ",
    "ROUTEZ",
    "GATEWAYZ",
    "LEAFZ",
    "ACCOUNTZ",
    "JSZ",
    "HEALTHZ",
    "RAFTZ",
    "IPQUEUESZ",
];
/// What a server is asked by its id alone.
const SERVER_ACTIONS: [&str; 3] = ["RELOAD", "KICK", "LDM"];
/// What is asked of an account.
const ACCOUNT_NAMES: [&str; 7] = ["SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS"];
const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// A service that every account has from the system account.
pub(super) struct Import {
    /// Subject in the account.
    pub(super) local: &'static str,
    /// Subject in the system account, with `*` for the account's name.
    pub(super) remote: &'static str,
    /// The one who asks is shown.
    pub(super) share: bool,
}

/// What every account but the system account may ask, about itself.
pub(super) const IMPORTS: [Import; 4] = [
    Import {
        local: "$SYS.REQ.ACCOUNT.PING.CONNZ",
        remote: "$SYS.REQ.ACCOUNT.*.CONNZ",
        share: false,
    },
    Import {
        local: "$SYS.REQ.SERVER.PING.CONNZ",
        remote: "$SYS.REQ.ACCOUNT.*.CONNZ",
        share: false,
    },
    Import {
        local: "$SYS.REQ.ACCOUNT.PING.STATZ",
        remote: "$SYS.REQ.ACCOUNT.*.STATZ",
        share: false,
    },
    Import {
        local: USER_INFO,
        remote: "$SYS.REQ.USER.*.INFO",
        share: true,
    },
];

/// The subjects on which this node answers, by account. Peers are to be told of them as of plain subscriptions, so
/// that a request reaches every node.
fn interest(shared: &NodeShared) -> Vec<(AccountId, Box<[u8]>)> {
    if !shared.options.system_events {
        return Vec::new();
    }
    let mut subjects = Vec::new();
    for account in &shared.accounts {
        let own = if account.system {
            system_subjects(&shared.identity.server_id)
        } else {
            import_subjects()
        };
        subjects.extend(
            own.into_iter()
                .map(|subject| (account.id, subject.into_bytes().into_boxed_slice())),
        );
    }
    subjects
}

fn system_subjects(server_id: &str) -> Vec<String> {
    let mut subjects = vec!["$SYS.REQ.SERVER.PING".to_owned(), USER_INFO.to_owned()];
    subjects.extend(
        SERVER_NAMES
            .iter()
            .map(|name| format!("$SYS.REQ.SERVER.PING.{name}")),
    );
    subjects.extend(
        SERVER_NAMES
            .iter()
            .chain(&SERVER_ACTIONS)
            .map(|name| format!("$SYS.REQ.SERVER.{server_id}.{name}")),
    );
    subjects.extend(
        ACCOUNT_NAMES
            .iter()
            .map(|name| format!("$SYS.REQ.ACCOUNT.*.{name}")),
    );
    subjects
}

fn import_subjects() -> Vec<String> {
    IMPORTS.iter().map(|import| import.local.to_owned()).collect()
}

/// Enters the node's own services into the interest of its accounts.
pub(crate) fn register(shared: &NodeShared) {
    for (account, subject) in interest(shared) {
        if let Some(account) = shared.account(account) {
            account
                .interest
                .commit(&[Change::Insert(subject, Target::Service(Service::System))]);
        }
    }
}

/// Who gets an answer.
#[derive(Clone, Debug)]
pub(crate) enum Asker {
    /// An HTTP request.
    Http(QueryId),
    /// A request of the system account or of an account about itself.
    Request {
        /// Account of the reply subject.
        account: AccountId,
        /// The reply subject.
        reply: Box<[u8]>,
    },
    /// Those who listen to the periodic figures of the server.
    StatsEvent,
    /// Those who listen to the connections of accounts.
    ConnsEvent(AccountId),
}

/// A request of this turn.
#[derive(Debug)]
pub(super) struct Asked {
    account: AccountId,
    /// The connection it came from, if it came from one of this worker.
    conn: Option<ConnKey>,
    subject: Box<[u8]>,
    reply: Box<[u8]>,
    body: Box<[u8]>,
}

/// Requests of one turn that are kept; those beyond are left unanswered, as under any overload of the requester.
const ASKED_MAX: usize = 4096;

impl Core {
    /// A message on one of the subjects of [`interest`]; answers whether it was taken. Without a reply subject there
    /// is nothing to do. The answer leaves at the end of the turn.
    pub(crate) fn system_entry(
        &mut self,
        conn: Option<ConnKey>,
        account: AccountId,
        message: &Message<'_>,
    ) -> bool {
        if !message.reply.is_empty() && self.system.asked.len() < ASKED_MAX {
            self.system.asked.push(Asked {
                account,
                conn,
                subject: message.target.into(),
                reply: message.reply.into(),
                body: message.payload.into(),
            });
        }
        true
    }

    /// Tells peers of the subjects on which this node answers. Only the worker that owns the links does.
    pub(crate) fn announce_services(&mut self) {
        if self.cluster.links.is_none() {
            return;
        }
        for (account, filter) in interest(&self.shared) {
            self.cluster.deltas.push(InterestDelta {
                account,
                filter,
                queue: None,
                added: true,
            });
        }
    }

    /// Answers a request of an account.
    pub(super) fn respond(&mut self, account: AccountId, reply: &[u8], body: &[u8]) {
        let message = Message {
            subject: reply,
            target: reply,
            reply: b"",
            header: b"",
            payload: body,
            shared: None,
        };
        self.publish_made(account, &message);
    }
}

/// What a request asks.
enum Question {
    /// This, of servers that the filter lets through.
    Topic(Topic),
    /// Who the asking client is.
    UserInfo,
    /// To read the configuration again.
    Reload,
    /// Nothing that this server answers.
    NotMine,
}

impl Worker {
    /// Answers the requests of this turn.
    pub(super) fn answer_requests(&mut self) {
        for asked in std::mem::take(&mut self.core.system.asked) {
            self.answer_request(asked);
        }
    }

    fn answer_request(&mut self, asked: Asked) {
        let shared = Arc::clone(&self.core.shared);
        let Some(account) = shared.account(asked.account) else {
            return;
        };
        let Ok(subject) = std::str::from_utf8(&asked.subject) else {
            return;
        };
        let server = shared.server_info(self.core.now.wall);
        let meant = match filter(&asked.body) {
            Ok(filter) => filter.matches(&server),
            // Which options are wrong is said below, by those who read them all.
            Err(_) => true,
        };
        let refused = |error: &DecodeError| system_error(&server, 400, &go_name(&error.to_string(), subject));
        let answer = match question(&shared, account, subject, &asked.body) {
            Ok(Question::NotMine) => return,
            Ok(Question::UserInfo) => {
                let identity = asked
                    .conn
                    .and_then(|conn| self.core.client(conn)?.identity.clone());
                let Some(identity) = identity else { return };
                system_reply(&server, &user_info(&shared, &identity))
            }
            Ok(Question::Topic(topic)) if topic != Topic::Idz && !meant => return,
            Ok(Question::Topic(topic)) => match filter(&asked.body) {
                Ok(_) => {
                    let (account, reply) = (asked.account, asked.reply);
                    self.ask(topic, Asker::Request { account, reply });
                    return;
                }
                Err(error) => refused(&error),
            },
            Ok(Question::Reload) => {
                let text = "reload is not supported by this version of Tidelock yet";
                system_error(&server, 500, text)
            }
            Err(error) => refused(&error),
        };
        self.core.respond(asked.account, &asked.reply, &answer);
    }
}

/// What a request asks, by its subject and its body.
fn question(
    shared: &NodeShared,
    account: &Account,
    subject: &str,
    body: &[u8],
) -> Result<Question, DecodeError> {
    let name = &*account.name;
    if subject == USER_INFO {
        return Ok(Question::UserInfo);
    }
    let mut tokens = subject.split('.').skip(2);
    let (kind, whom, what) = (tokens.next(), tokens.next().unwrap_or_default(), tokens.next());
    match (kind, what) {
        (Some("SERVER" | "ACCOUNT"), Some("CONNZ")) if !account.system => {
            let options = ConnzOptions {
                acc: name.to_owned(),
                ..options(body)?
            };
            Ok(Question::Topic(Topic::Connz(Box::new(options))))
        }
        (Some("ACCOUNT"), Some("STATZ")) if !account.system => {
            let options = AccountStatzOptions {
                accounts: vec![name.to_owned()],
                ..options(body)?
            };
            Ok(Question::Topic(Topic::Accstatz(options)))
        }
        (Some("SERVER"), what) if account.system => {
            if whom == "PING" || whom == &*shared.identity.server_id {
                server_question(what.unwrap_or("STATSZ"), body)
            } else {
                Ok(Question::NotMine)
            }
        }
        (Some("ACCOUNT"), Some(what)) if account.system => account_question(whom, what, body),
        _ => Ok(Question::NotMine),
    }
}

fn server_question(what: &str, body: &[u8]) -> Result<Question, DecodeError> {
    Ok(Question::Topic(match what {
        "IDZ" => Topic::Idz,
        "STATSZ" => Topic::Statsz,
        "VARZ" => Topic::Varz,
        "SUBSZ" => Topic::Subsz(options(body)?),
        "CONNZ" => Topic::Connz(Box::new(options(body)?)),
        "ROUTEZ" => Topic::Routez(options::<RoutezOptions>(body)?),
        "GATEWAYZ" => Topic::Gatewayz,
        "LEAFZ" => Topic::Leafz,
        "ACCOUNTZ" => Topic::Accountz(options::<AccountzOptions>(body)?),
        "JSZ" => Topic::Jsz(Box::new(options(body)?)),
        "HEALTHZ" => Topic::Healthz(Box::new(options::<HealthzOptions>(body)?)),
        "RAFTZ" => Topic::Raftz(options::<RaftzOptions>(body)?),
        "IPQUEUESZ" => Topic::IpQueues,
        "KICK" => Topic::Kick(options::<ClientRequest>(body)?.cid),
        "LDM" => Topic::Ldm(options::<ClientRequest>(body)?.cid),
        "RELOAD" => return Ok(Question::Reload),
        _ => return Ok(Question::NotMine),
    }))
}

fn account_question(name: &str, what: &str, body: &[u8]) -> Result<Question, DecodeError> {
    let name = name.to_owned();
    Ok(Question::Topic(match what {
        "SUBSZ" => Topic::Subsz(SubszOptions {
            account: name,
            subscriptions: true,
            ..options(body)?
        }),
        "CONNZ" => Topic::Connz(Box::new(ConnzOptions {
            acc: name,
            ..options(body)?
        })),
        "LEAFZ" => Topic::Leafz,
        "JSZ" => Topic::AccountJsz(Box::new(JszOptions {
            account: name,
            ..options(body)?
        })),
        "INFO" => Topic::AccountInfo(name),
        "STATZ" if name == "PING" => Topic::Accstatz(options(body)?),
        "STATZ" => Topic::Accstatz(AccountStatzOptions {
            accounts: vec![name],
            ..options(body)?
        }),
        "CONNS" => Topic::AccountConns(name),
        _ => return Ok(Question::NotMine),
    }))
}

/// The options in a body; an empty body has none.
fn options<T: Decode>(body: &[u8]) -> Result<T, DecodeError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        Ok(T::default())
    } else {
        decode_lenient(body)
    }
}

/// Which servers are meant.
fn filter(body: &[u8]) -> Result<EventFilter, DecodeError> {
    options(body)
}

/// The options of requests have other names in error texts than those of endpoints: by what was asked.
fn go_name(text: &str, subject: &str) -> String {
    let what = match subject.split('.').nth(4) {
        Some(what) => what.to_ascii_lowercase(),
        None => "statsz".to_owned(),
    };
    let Some((before, after)) = text.split_once("Options") else {
        return text.to_owned();
    };
    let start = before.rfind([' ', '.']).map_or(0, |at| at + 1);
    let (first, rest) = what.split_at_checked(1).unwrap_or(("", ""));
    let before = before.get(..start).unwrap_or_default();
    format!("{before}{}{rest}EventOptions{after}", first.to_ascii_uppercase())
}

fn user_info(shared: &NodeShared, identity: &Identity) -> UserInfo {
    UserInfo {
        user: user_name(shared, identity),
        account: identity.account_name.to_string(),
        account_name: identity.account_name.to_string(),
        permissions: identity.permissions.as_ref().map(|permissions| {
            let spec = permissions.spec();
            Permissions {
                publish: spec.publish.as_ref().map(rules),
                subscribe: spec.subscribe.as_ref().map(rules),
                responses: spec.responses.map(|responses| ResponsePermission {
                    max: responses.max,
                    ttl: Nanos(responses.expires_ns),
                }),
            }
        }),
        ..UserInfo::default()
    }
}

/// The name that a user is told. One without a name of its own is the holder of the token, which is not shown, or was let
/// in because only the system account has users: nats-server makes up a user for those at each start.
fn user_name(shared: &NodeShared, identity: &Identity) -> String {
    let users = &shared.options.users;
    if !identity.user.is_empty() || !users.required() {
        return identity.user.to_string();
    }
    if users.has_token() {
        return "[REDACTED]".to_owned();
    }
    format!("nats-{}", hash8(&shared.identity.boot.0.to_le_bytes()))
}

fn rules(rules: &SubjectRules) -> SubjectPermission {
    SubjectPermission {
        allow: rules.allow.clone().unwrap_or_default(),
        deny: rules.deny.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_name_the_options_of_requests() {
        const CONNZ: &str = "$SYS.REQ.SERVER.PING.CONNZ";
        let error = options::<ConnzOptions>(br#"{"limit":"x"}"#).expect_err("a string is no number");
        assert_eq!(
            go_name(&error.to_string(), CONNZ),
            "json: cannot unmarshal string into Go struct field ConnzEventOptions.limit of type int"
        );
        let error = filter(br#"{"tags":1}"#).expect_err("a number is no list");
        assert_eq!(
            go_name(&error.to_string(), "$SYS.REQ.SERVER.PING"),
            "json: cannot unmarshal number into Go struct field StatszEventOptions.tags of type []string"
        );
        let error = options::<ConnzOptions>(br#""x""#).expect_err("a string is no object");
        assert_eq!(
            go_name(&error.to_string(), CONNZ),
            "json: cannot unmarshal string into Go value of type server.ConnzEventOptions"
        );
        let error = options::<ConnzOptions>(b"{").expect_err("an open object");
        assert_eq!(go_name(&error.to_string(), CONNZ), "unexpected end of JSON input");
    }

    #[test]
    fn every_subject_of_a_server_leads_to_a_question() {
        for name in SERVER_NAMES.iter().chain(&SERVER_ACTIONS) {
            assert!(
                !matches!(server_question(name, b""), Ok(Question::NotMine) | Err(_)),
                "{name}"
            );
        }
        for name in ACCOUNT_NAMES {
            assert!(
                !matches!(account_question("A", name, b""), Ok(Question::NotMine) | Err(_)),
                "{name}"
            );
        }
    }
}
