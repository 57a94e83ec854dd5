//! From a question and what was gathered for it to the answer, and to who asked.

use super::accounts::account_stat;
use super::body::{self, Body, Gatewayz, Reply};
use super::connections::{self, Selection};
use super::gather::{Acted, Part};
use super::options::{self, Refused};
use super::requests::Asker;
use super::topic::Topic;
use crate::worker::{Core, Query, QueryId, Worker};
use std::collections::BTreeMap;
use tidelock_api::event::{self, AccountConnections, EventKind, ServerInfo};
use tidelock_api::monitor::{Connz, ConnzOptions, Leafz, StatsReply};
use tidelock_api::{Time, to_json};
use tidelock_base::{AccountId, COMPATIBLE_VERSION};

impl Worker {
    /// A monitoring request over HTTP; its answer is in the output of this turn or, with several workers, of a later
    /// one.
    pub fn query(&mut self, id: QueryId, query: &Query) {
        match options::topic(query) {
            Ok(topic) => {
                let path = format!("/{}", query.endpoint);
                *self.core.system.http_requests.entry(path).or_default() += 1;
                self.ask(topic, Asker::Http(id));
            }
            Err(Refused::NotFound) => self.core.out.answers.push((id, body::not_found())),
            Err(Refused::Bad(text)) => self.core.out.answers.push((id, body::text(400, &text))),
        }
    }

    /// Gives whoever asked the answer.
    pub(super) fn answer(&mut self, topic: &Topic, asker: Asker, part: &Part) {
        let core = &mut self.core;
        match asker {
            Asker::Http(id) => {
                let answer = body::http(core.reply(topic, part));
                core.out.answers.push((id, answer));
            }
            Asker::Request { account, reply } => {
                if let Topic::AccountConns(name) = topic {
                    if let Some(id) = core
                        .shared
                        .account_id(name)
                        .filter(|id| core.has_connections(*id))
                    {
                        let body = core.account_event(id, part);
                        core.respond(account, &reply, &body);
                    }
                    return;
                }
                let info = core.shared.server_info(core.now.wall);
                let answer = core.reply(topic, part);
                if let Some(body) = envelope(core, &info, answer) {
                    core.respond(account, &reply, &body);
                }
            }
            Asker::StatsEvent => core.publish_statsz(part),
            Asker::ConnsEvent(account) => core.publish_account(account, part),
        }
    }
}

/// The answer to a request of the system account; `None` if there is none.
fn envelope(core: &Core, server: &ServerInfo, answer: Reply) -> Option<Vec<u8>> {
    Some(match answer {
        Reply::Body(data) => event::system_reply(server, &data),
        Reply::Health(data) => event::system_reply(server, &data),
        Reply::Stats(statsz) => to_json(&StatsReply {
            server,
            statsz: &statsz,
        }),
        Reply::Id => to_json(&core.shared.server_id()),
        Reply::Fault(0, text) => event::system_error(server, 500, &text),
        Reply::Fault(_, text) => event::system_fault(server, &text),
        Reply::Done => event::system_done(server),
        Reply::Silence | Reply::NotLeader | Reply::Page(_) => return None,
    })
}

impl Core {
    fn reply(&self, topic: &Topic, part: &Part) -> Reply {
        let server_id = self.shared.identity.server_id.to_string();
        let now = Time(self.now.wall);
        match topic {
            Topic::Root => Reply::Page(body::page(COMPATIBLE_VERSION)),
            Topic::Varz => self.varz(part),
            Topic::Connz(options) => self.connz(options, part),
            Topic::Routez(_) => self.routez(),
            Topic::Gatewayz => Reply::Body(Body::Gatewayz(Gatewayz {
                server_id,
                now,
                ..Gatewayz::default()
            })),
            Topic::Leafz => Reply::Body(Body::Leafz(Leafz {
                server_id,
                now,
                ..Leafz::default()
            })),
            Topic::Subsz(options) => self.subsz(options, part),
            Topic::Accountz(options) => self.accountz(options),
            Topic::Accstatz(options) => self.accstatz(options, part),
            Topic::Jsz(options) => self.jsz(options, &part.jetstream),
            Topic::Healthz(options) => self.healthz(options, &part.jetstream),
            Topic::Raftz(_) => self.raftz(&part.jetstream),
            Topic::IpQueues => Reply::Body(Body::Nothing(BTreeMap::new())),
            Topic::Statsz => Reply::Stats(Box::new(self.statsz(part))),
            Topic::Idz => Reply::Id,
            Topic::AccountInfo(name) => self.account_answer(name),
            Topic::AccountConns(_) => Reply::Silence,
            Topic::AccountJsz(options) => self.account_jsz(options, &part.jetstream),
            Topic::Kick(_) => match part.acted {
                Acted::Done => Reply::Done,
                Acted::NotFound | Acted::NotReady => {
                    Reply::Fault(0, "no such client or leafnode id".to_owned())
                }
            },
            Topic::Ldm(_) => match part.acted {
                Acted::Done => Reply::Done,
                Acted::NotFound => Reply::Fault(0, "no such client id".to_owned()),
                Acted::NotReady => {
                    let text =
                        "client does not support Lame Duck Mode or is not ready to receive the notification";
                    Reply::Fault(0, text.to_owned())
                }
            },
        }
    }

    fn connz(&self, options: &ConnzOptions, part: &Part) -> Reply {
        let now = Time(self.now.wall);
        match Selection::new(options, |name| self.shared.account_id(name)) {
            Ok(selection) => {
                let server_id = &self.shared.identity.server_id;
                let connz: Connz = connections::merge(&selection, part.page.clone(), server_id, now);
                Reply::Body(Body::Connz(connz))
            }
            Err(text) => Reply::Fault(400, text),
        }
    }

    fn has_connections(&self, account: AccountId) -> bool {
        let account = self.shared.account(account);
        account.is_some_and(|a| a.connections.load(std::sync::atomic::Ordering::Relaxed) > 0)
    }

    /// Connections of an account, as an event.
    pub(super) fn account_event(&mut self, account: AccountId, part: &Part) -> Vec<u8> {
        let shared = std::sync::Arc::clone(&self.shared);
        let Some(account) = shared.account(account) else {
            return Vec::new();
        };
        let server = shared.server_info(self.now.wall);
        let body = AccountConnections {
            server: &server,
            stat: account_stat(account, part),
        };
        let id = self.event_id();
        event::event(EventKind::AccountConnections, &id, Time(self.now.wall), &body)
    }
}
