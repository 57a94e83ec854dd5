//! Questions that all workers of a node have a share in: the worker that was asked asks the others, adds up what they
//! say, and answers.

use super::connections::{self, Page, Selection};
use super::jetstream::JetStreamPart;
use super::requests::Asker;
use super::shared::Traffic;
use super::topic::{Act, Needs, Topic};
use crate::cell::Cell;
use crate::worker::{Core, Worker};
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_api::monitor::{SubDetail, SubszOptions};
use tidelock_base::{AccountId, Mono, WorkerId};
use tidelock_session::CloseReason;

/// A worker that says nothing for so long is left out of the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What workers of a node say to each other about monitoring.
#[derive(Clone, Debug)]
pub enum SystemCell {
    /// A question.
    Ask {
        /// Comes back with the answer.
        number: u64,
        /// What to contribute.
        needs: Box<NeedsCell>,
    },
    /// The answer.
    Told {
        /// Of which question.
        number: u64,
        /// The share of the worker that answers.
        part: Box<PartCell>,
    },
}

/// What a worker is to contribute; opaque outside of this module.
#[derive(Clone, Debug)]
pub struct NeedsCell(Needs);

/// What a worker contributes; opaque outside of this module.
#[derive(Clone, Debug)]
pub struct PartCell(Part);

/// What one worker contributes, or all of them together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// Traffic of open connections.
    pub(crate) traffic: BTreeMap<AccountId, Traffic>,
    /// Connections.
    pub(crate) page: Page,
    /// Subscriptions that match.
    pub(crate) subscriptions_total: usize,
    /// Those that can be on the page.
    pub(crate) subscriptions: Vec<SubDetail>,
    /// Subjects whose receivers are kept.
    pub(crate) cached_routes: usize,
    /// Groups.
    pub(crate) jetstream: JetStreamPart,
    /// What became of the client that was to be treated.
    pub(crate) acted: Acted,
}

/// What became of a client that was to be treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Acted {
    /// No worker has it.
    #[default]
    NotFound,
    /// It takes no INFO now.
    NotReady,
    /// Done.
    Done,
}

impl Part {
    fn add(&mut self, other: Self) {
        for (account, traffic) in other.traffic {
            self.traffic.entry(account).or_default().add(&traffic);
        }
        self.page.total += other.page.total;
        self.page.records.extend(other.page.records);
        self.subscriptions_total += other.subscriptions_total;
        self.subscriptions.extend(other.subscriptions);
        self.cached_routes += other.cached_routes;
        self.jetstream.add(other.jetstream);
        if self.acted == Acted::NotFound {
            self.acted = other.acted;
        }
    }

    /// Traffic of all accounts.
    pub(crate) fn all_traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        self.traffic.values().for_each(|traffic| sum.add(traffic));
        sum
    }
}

/// A question under way.
#[derive(Debug)]
struct Gather {
    topic: Topic,
    asker: Asker,
    missing: u16,
    part: Part,
    until: Mono,
}

/// Questions under way, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    last: u64,
    open: BTreeMap<u64, Gather>,
}

impl Gathers {
    /// When the first of them is answered with what there is.
    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        self.open.values().map(|gather| gather.until).min()
    }
}

impl Worker {
    /// Answers a question, at once if this worker knows everything, else when the others have spoken.
    pub(super) fn ask(&mut self, topic: Topic, asker: Asker) {
        let needs = topic.needs();
        let part = self.contribute(&needs);
        let others = self.core.shared.workers.saturating_sub(1);
        if others == 0 || needs.is_empty() {
            self.answer(&topic, asker, &part);
            return;
        }
        let gathers = &mut self.core.system.gathers;
        gathers.last += 1;
        let number = gathers.last;
        let until = self.core.now.mono + PATIENCE;
        gathers.open.insert(
            number,
            Gather {
                topic,
                asker,
                missing: others,
                part,
                until,
            },
        );
        for worker in (0..self.core.shared.workers)
            .map(WorkerId)
            .filter(|worker| *worker != self.core.id)
        {
            let ask = SystemCell::Ask {
                number,
                needs: Box::new(NeedsCell(needs.clone())),
            };
            self.core.out.cells.push_back((worker, Cell::System(ask)));
        }
    }

    /// Another worker of this node asks or answers.
    pub(crate) fn system_cell(&mut self, from: WorkerId, cell: SystemCell) {
        match cell {
            SystemCell::Ask { number, needs } => {
                let part = Box::new(PartCell(self.contribute(&needs.0)));
                self.core
                    .out
                    .cells
                    .push_back((from, Cell::System(SystemCell::Told { number, part })));
            }
            SystemCell::Told { number, part } => {
                let open = &mut self.core.system.gathers.open;
                let Some(gather) = open.get_mut(&number) else {
                    return;
                };
                gather.part.add(part.0);
                gather.missing = gather.missing.saturating_sub(1);
                if gather.missing == 0
                    && let Some(gather) = open.remove(&number)
                {
                    self.answer(&gather.topic, gather.asker, &gather.part);
                }
            }
        }
    }

    /// Answers with what there is where a worker has been silent for too long.
    pub(super) fn end_gathers(&mut self) {
        let now = self.core.now.mono;
        let open = &mut self.core.system.gathers.open;
        let late: Vec<u64> = open
            .iter()
            .filter(|(_, gather)| gather.until <= now)
            .map(|(n, _)| *n)
            .collect();
        for number in late {
            if let Some(gather) = self.core.system.gathers.open.remove(&number) {
                self.answer(&gather.topic, gather.asker, &gather.part);
            }
        }
    }

    /// This worker's share.
    fn contribute(&mut self, needs: &Needs) -> Part {
        let mut part = Part::default();
        if needs.traffic {
            for (client, inbound) in self.open_connections() {
                if let Some(account) = client.account() {
                    part.traffic
                        .entry(account)
                        .or_default()
                        .add(&connections::traffic(client, inbound));
                }
            }
        }
        if let Some(options) = &needs.connections
            && let Ok(selection) = Selection::new(options, |name| self.core.shared.account_id(name))
        {
            let now = self.core.now.wall;
            part.page = connections::page(&selection, self.open_connections(), &self.core.system.closed, now);
        }
        if let Some(options) = &needs.subscriptions {
            part.cached_routes = self.core.routes.len();
            self.core.contribute_subscriptions(options, &mut part);
        }
        if let Some(options) = &needs.jetstream {
            part.jetstream = self.core.jetstream_part(options);
        }
        if let Some(options) = &needs.health {
            part.jetstream.health = self.core.jetstream_health(options);
        }
        if let Some(options) = &needs.raft {
            part.jetstream.raft = self.core.raft_part(options);
        }
        if let Some(act) = needs.act {
            part.acted = self.act(act);
        }
        part
    }

    /// Does to a client of this worker what an operator wants.
    fn act(&mut self, act: Act) -> Acted {
        let (Act::Kick(cid) | Act::Ldm(cid)) = act;
        let key = self
            .core
            .client_keys()
            .find(|key| self.core.client_at(*key).is_some_and(|c| c.cid.0 == cid));
        let Some(key) = key else { return Acted::NotFound };
        match act {
            Act::Kick(_) => {
                self.core.close(key, CloseReason::Kicked);
                Acted::Done
            }
            Act::Ldm(_) if self.tell_lame_duck(key) => Acted::Done,
            Act::Ldm(_) => Acted::NotReady,
        }
    }
}

impl Core {
    fn contribute_subscriptions(&self, options: &SubszOptions, part: &mut Part) {
        if !options.subscriptions {
            return;
        }
        let (offset, limit) = subsz_page(options);
        for client in self.clients.iter().filter_map(|place| place.client.as_ref()) {
            let Some(identity) = &client.identity else {
                continue;
            };
            if !options.account.is_empty() && *identity.account_name != *options.account {
                continue;
            }
            for (_, sub) in client.outbound.subs() {
                let test = options.test.as_bytes();
                if !test.is_empty() && !tidelock_subject::matches(sub.subject(), test) {
                    continue;
                }
                part.subscriptions_total += 1;
                if part.subscriptions.len() < offset.saturating_add(limit) {
                    let name = identity.account_name.to_string();
                    let detail = connections::detail(client.cid.0, sub);
                    part.subscriptions.push(SubDetail {
                        account: name.clone(),
                        account_tag: name,
                        ..detail
                    });
                }
            }
        }
    }
}

/// How many subscriptions to leave out, and the most to show.
pub(super) fn subsz_page(options: &SubszOptions) -> (usize, usize) {
    let limit = usize::try_from(options.limit)
        .ok()
        .filter(|limit| *limit > 0)
        .unwrap_or(connections::LIMIT);
    (usize::try_from(options.offset).unwrap_or(0), limit)
}
