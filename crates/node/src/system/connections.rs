//! Connections as monitoring shows them: open ones as they are, closed ones as they were, in the order that was
//! asked for.
//!
//! Each worker sorts its own by [`Figures`], which cost nothing to make, and describes only those that can be on the
//! page; the worker that was asked merges the pages.

use super::shared::Traffic;
use crate::worker::Client;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use tidelock_api::monitor::{ConnInfo, Connz, ConnzOptions, SubDetail, rtt_text, uptime};
use tidelock_api::{Nanos, Time};
use tidelock_base::{AccountId, Wall};
use tidelock_session::{CloseReason, Inbound, Subscription};

/// Stands for an account that was asked for and is not there.
const NO_ACCOUNT: AccountId = AccountId(u32::MAX);
/// Connections of an answer that sets no limit.
pub(crate) const LIMIT: usize = 1024;
/// Subscriptions that are remembered of a closed connection; those beyond are only counted.
const CLOSED_SUBSCRIPTIONS_MAX: usize = 1024;
/// Account whose name is not shown.
const GLOBAL: &str = "$G";

/// What connections are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Cid,
    Start,
    Subs,
    Pending,
    MsgsTo,
    MsgsFrom,
    BytesTo,
    BytesFrom,
    Last,
    Idle,
    Uptime,
    Stop,
    Reason,
    Rtt,
}

impl Sort {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "" | "cid" => Self::Cid,
            "start" => Self::Start,
            "subs" => Self::Subs,
            "pending" => Self::Pending,
            "msgs_to" => Self::MsgsTo,
            "msgs_from" => Self::MsgsFrom,
            "bytes_to" => Self::BytesTo,
            "bytes_from" => Self::BytesFrom,
            "last" => Self::Last,
            "idle" => Self::Idle,
            "uptime" => Self::Uptime,
            "stop" => Self::Stop,
            "reason" => Self::Reason,
            "rtt" => Self::Rtt,
            _ => return None,
        })
    }

    /// Numbers from high to low, but for the ages; ties in the order of the connections' numbers.
    fn compare(self, a: &Figures, b: &Figures) -> Ordering {
        let order = match self {
            Self::Cid | Self::Start => Ordering::Equal,
            Self::Subs => b.subs.cmp(&a.subs),
            Self::Pending => b.pending.cmp(&a.pending),
            Self::MsgsTo => b.traffic.out_msgs.cmp(&a.traffic.out_msgs),
            Self::MsgsFrom => b.traffic.in_msgs.cmp(&a.traffic.in_msgs),
            Self::BytesTo => b.traffic.out_bytes.cmp(&a.traffic.out_bytes),
            Self::BytesFrom => b.traffic.in_bytes.cmp(&a.traffic.in_bytes),
            Self::Last => b.last.cmp(&a.last),
            Self::Idle => a.last.cmp(&b.last),
            Self::Uptime => b.start.cmp(&a.start),
            Self::Stop => b.stop.cmp(&a.stop),
            Self::Reason => a.reason.cmp(b.reason),
            Self::Rtt => b.rtt_ns.cmp(&a.rtt_ns),
        };
        order.then(a.cid.cmp(&b.cid))
    }
}

/// What connections are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    cid: u64,
    start: Wall,
    last: Wall,
    /// [`Wall::ZERO`] while it is open.
    stop: Wall,
    reason: &'static str,
    subs: usize,
    pending: usize,
    rtt_ns: u64,
    pub(crate) traffic: Traffic,
}

/// A connection, described.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// What it is sorted by.
    pub(crate) figures: Figures,
    /// What is shown of it.
    pub(crate) info: Box<ConnInfo>,
}

/// A closed connection, as it was.
#[derive(Clone, Debug)]
struct Closed {
    account: Option<AccountId>,
    user: Arc<str>,
    account_name: Arc<str>,
    record: Record,
    subs: Vec<SubDetail>,
}

/// The connections that a worker closed last.
#[derive(Debug, Default)]
pub(crate) struct ClosedRing(VecDeque<Closed>);

/// What one worker contributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    /// Connections of the state that was asked for, of the account if one was.
    pub(crate) total: usize,
    /// Those that can be on the page, sorted.
    pub(crate) records: Vec<Record>,
}

/// The options, made sense of.
pub(crate) struct Selection<'a> {
    options: &'a ConnzOptions,
    account: Option<AccountId>,
    sort: Sort,
    /// How many to leave out.
    offset: usize,
    /// Most on the page.
    limit: usize,
}

impl<'a> Selection<'a> {
    /// # Errors
    /// The text for who asked, if the options do not go together. `account` finds the one that is named.
    pub(crate) fn new(
        options: &'a ConnzOptions,
        account: impl FnOnce(&str) -> Option<AccountId>,
    ) -> Result<Self, String> {
        let sort =
            Sort::parse(&options.sort).ok_or_else(|| format!("invalid sorting option: {}", options.sort))?;
        if matches!(sort, Sort::Stop | Sort::Reason) && options.state != CLOSED {
            return Err(format!(
                "sort by {} only valid on closed connections",
                options.sort
            ));
        }
        // A name that no account has selects nothing.
        let account = match options.acc.as_str() {
            "" => None,
            name => Some(account(name).unwrap_or(NO_ACCOUNT)),
        };
        let limit = usize::try_from(options.limit)
            .ok()
            .filter(|limit| *limit > 0)
            .unwrap_or(LIMIT);
        let limit = if options.cid > 0 { 1 } else { limit };
        Ok(Self {
            options,
            account,
            sort,
            offset: usize::try_from(options.offset).unwrap_or(0),
            limit,
        })
    }

    fn page_end(&self) -> usize {
        self.offset.saturating_add(self.limit)
    }

    fn wants_open(&self) -> bool {
        matches!(self.options.state, OPEN | ALL)
    }

    fn wants_closed(&self) -> bool {
        matches!(self.options.state, CLOSED | ALL)
    }

    fn shows_subs(&self) -> bool {
        self.options.subscriptions || self.options.subscriptions_detail
    }

    fn of_account(&self, account: Option<AccountId>) -> bool {
        self.account.is_none() || self.account == account
    }

    fn picks(&self, cid: u64, user: &str) -> bool {
        (self.options.cid == 0 || self.options.cid == cid)
            && (self.options.user.is_empty() || self.options.user == user)
            && self.options.mqtt_client.is_empty()
    }

    fn picks_sub(&self, subject: &[u8]) -> bool {
        tidelock_subject::overlaps(subject, self.options.filter_subject.as_bytes())
    }

    /// Finishes a record for this question: who it is and what it subscribed to only if that was asked for.
    fn dress(&self, info: &mut ConnInfo, user: &str, account: &str, subs: impl FnOnce() -> Vec<SubDetail>) {
        if self.options.auth {
            user.clone_into(&mut info.authorized_user);
            account.clone_into(&mut info.name_tag);
            if account != GLOBAL {
                account.clone_into(&mut info.account);
            }
        }
        if self.options.subscriptions_detail {
            info.subscriptions_list_detail = subs();
        } else if self.options.subscriptions {
            info.subscriptions_list = subs().into_iter().map(|sub| sub.subject).collect();
        }
    }
}

const OPEN: i64 = 0;
const CLOSED: i64 = 1;
const ALL: i64 = 2;

/// One worker's share of the answer.
pub(crate) fn page<'c>(
    selection: &Selection<'_>,
    open: impl Iterator<Item = (&'c Client, &'c Inbound)>,
    closed: &'c ClosedRing,
    now: Wall,
) -> Page {
    enum Source<'c> {
        Open(&'c Client, &'c Inbound),
        Closed(&'c Closed),
    }
    let mut total = 0;
    let mut found: Vec<(Figures, Source<'c>)> = Vec::new();
    if selection.wants_open() {
        for (client, inbound) in open.filter(|(client, _)| selection.of_account(client.account())) {
            total += 1;
            let user = client.identity.as_ref().map_or("", |identity| &*identity.user);
            let wanted = selection.picks(client.cid.0, user)
                && (selection.options.filter_subject.is_empty()
                    || client
                        .outbound
                        .subs()
                        .any(|(_, sub)| selection.picks_sub(sub.subject())));
            if wanted {
                found.push((figures(client, inbound), Source::Open(client, inbound)));
            }
        }
    }
    if selection.wants_closed() {
        for gone in closed.0.iter().filter(|gone| selection.of_account(gone.account)) {
            total += 1;
            let wanted = selection.picks(gone.record.figures.cid, &gone.user)
                && (selection.options.filter_subject.is_empty()
                    || gone
                        .subs
                        .iter()
                        .any(|sub| selection.picks_sub(sub.subject.as_bytes())));
            if wanted {
                found.push((gone.record.figures, Source::Closed(gone)));
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| selection.sort.compare(a, b));
    found.truncate(selection.page_end());
    let records = found.into_iter().map(|(figures, source)| match source {
        Source::Open(client, inbound) => {
            let mut info = describe(client, inbound, &figures, now);
            let identity = client.identity.as_ref();
            let user = identity.map_or("", |identity| &*identity.user);
            let account = identity.map_or("", |identity| &*identity.account_name);
            selection.dress(&mut info, user, account, || details(client, usize::MAX));
            Record {
                figures,
                info: Box::new(info),
            }
        }
        Source::Closed(gone) => {
            let mut record = gone.record.clone();
            selection.dress(&mut record.info, &gone.user, &gone.account_name, || {
                gone.subs.clone()
            });
            record
        }
    });
    Page {
        total,
        records: records.collect(),
    }
}

/// The answer, from the shares of all workers.
pub(crate) fn merge(selection: &Selection<'_>, page: Page, server_id: &str, now: Time) -> Connz {
    let Page { total, mut records } = page;
    records.sort_by(|a, b| selection.sort.compare(&a.figures, &b.figures));
    let connections: Vec<ConnInfo> = records
        .into_iter()
        .skip(selection.offset)
        .take(selection.limit)
        .map(|record| *record.info)
        .collect();
    debug_assert!(
        selection.shows_subs() || connections.iter().all(|c| c.subscriptions_list_detail.is_empty())
    );
    let known = selection.account != Some(NO_ACCOUNT);
    Connz {
        // An account that is not there is answered with nothing but the page.
        server_id: if known {
            server_id.to_owned()
        } else {
            String::new()
        },
        now,
        num_connections: connections.len() as u64,
        total: total as u64,
        offset: selection.offset as u64,
        limit: selection.limit as u64,
        connections: known.then_some(connections),
    }
}

impl ClosedRing {
    /// Remembers a connection that ends now, and forgets the oldest if there are more than `max`. Answers what was
    /// remembered.
    pub(crate) fn push(
        &mut self,
        max: usize,
        client: &Client,
        inbound: &Inbound,
        reason: CloseReason,
        now: Wall,
    ) -> Option<&Record> {
        if max == 0 {
            return None;
        }
        let record = record(client, inbound, reason, now);
        while self.0.len() >= max {
            self.0.pop_front();
        }
        let identity = client.identity.as_ref();
        self.0.push_back(Closed {
            account: client.account(),
            user: identity.map_or_else(|| "".into(), |identity| Arc::clone(&identity.user)),
            account_name: identity.map_or_else(|| "".into(), |identity| Arc::clone(&identity.account_name)),
            subs: details(client, CLOSED_SUBSCRIPTIONS_MAX),
            record,
        });
        self.0.back().map(|closed| &closed.record)
    }
}

/// A connection that ends now.
fn record(client: &Client, inbound: &Inbound, reason: CloseReason, now: Wall) -> Record {
    let mut figures = figures(client, inbound);
    (figures.stop, figures.reason) = (now, reason.text());
    let mut info = describe(client, inbound, &figures, now);
    info.stop = Some(Time(now));
    reason.text().clone_into(&mut info.reason);
    Record {
        figures,
        info: Box::new(info),
    }
}

/// Messages and bytes of a connection.
pub(crate) fn traffic(client: &Client, inbound: &Inbound) -> Traffic {
    let (received, sent) = (inbound.counters(), client.outbound.counters());
    Traffic {
        in_msgs: received.messages,
        in_bytes: received.bytes,
        out_msgs: sent.messages,
        out_bytes: sent.bytes,
    }
}

/// Round trip time in nanoseconds; 0 if it is not known.
pub(crate) fn rtt_ns(inbound: &Inbound) -> u64 {
    inbound
        .rtt()
        .map_or(0, |rtt| u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX))
}

fn figures(client: &Client, inbound: &Inbound) -> Figures {
    Figures {
        cid: client.cid.0,
        start: client.start.wall,
        last: client.last_activity.wall,
        stop: Wall::ZERO,
        reason: "",
        subs: client.outbound.sub_count(),
        pending: client.outbound.pending(),
        rtt_ns: rtt_ns(inbound),
        traffic: traffic(client, inbound),
    }
}

fn describe(client: &Client, inbound: &Inbound, figures: &Figures, now: Wall) -> ConnInfo {
    let connect = inbound.connect();
    let traffic = figures.traffic;
    let rtt = i64::try_from(figures.rtt_ns).unwrap_or(i64::MAX);
    ConnInfo {
        cid: figures.cid,
        kind: "Client".to_owned(),
        client_type: "nats".to_owned(),
        ip: client.remote.ip().to_string(),
        port: u64::from(client.remote.port()),
        start: Time(figures.start),
        last_activity: Time(figures.last),
        rtt: rtt_text((rtt > 0).then_some(Nanos(rtt))),
        uptime: uptime(Time(figures.start), Time(now)),
        idle: uptime(Time(figures.last), Time(now)),
        pending_bytes: figures.pending as u64,
        in_msgs: traffic.in_msgs,
        out_msgs: traffic.out_msgs,
        in_bytes: traffic.in_bytes,
        out_bytes: traffic.out_bytes,
        stalls: client.stalls,
        subscriptions: figures.subs as u64,
        name: connect.name.clone(),
        lang: connect.lang.clone(),
        version: connect.version.clone(),
        ..ConnInfo::default()
    }
}

/// At most `max` subscriptions of a connection, in the order of their slots.
fn details(client: &Client, max: usize) -> Vec<SubDetail> {
    client
        .outbound
        .subs()
        .take(max)
        .map(|(_, sub)| detail(client.cid.0, sub))
        .collect()
}

/// One subscription.
pub(crate) fn detail(cid: u64, sub: &Subscription) -> SubDetail {
    SubDetail {
        subject: text(sub.subject()),
        qgroup: sub.queue().map(|queue| text(queue)).unwrap_or_default(),
        sid: text(sub.sid()),
        msgs: sub.delivered(),
        max: sub.max().unwrap_or(0),
        cid,
        ..SubDetail::default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(cid: u64) -> Figures {
        Figures {
            cid,
            start: Wall(i64::try_from(cid).unwrap_or(0)),
            last: Wall(0),
            stop: Wall::ZERO,
            reason: "",
            subs: 0,
            pending: 0,
            rtt_ns: 0,
            traffic: Traffic::default(),
        }
    }

    fn order(sort: &str, of: &[Figures]) -> Vec<u64> {
        let sort = Sort::parse(sort).expect("a sort of the table");
        let mut sorted = of.to_vec();
        sorted.sort_by(|a, b| sort.compare(a, b));
        sorted.iter().map(|figures| figures.cid).collect()
    }

    #[test]
    fn orders_are_those_of_nats_server() {
        let first = Figures {
            subs: 1,
            last: Wall(9),
            reason: "Client Closed",
            stop: Wall(1),
            ..figures(12)
        };
        let second = Figures {
            last: Wall(3),
            reason: "Client Closed",
            stop: Wall(2),
            ..figures(13)
        };
        let third = Figures {
            subs: 2,
            last: Wall(5),
            reason: "Authentication Failure",
            ..figures(14)
        };
        let all = [third, first, second];
        assert_eq!(order("", &all), [12, 13, 14]);
        assert_eq!(order("start", &all), [12, 13, 14]);
        assert_eq!(order("subs", &all), [14, 12, 13]);
        assert_eq!(order("last", &all), [12, 14, 13]);
        assert_eq!(order("idle", &all), [13, 14, 12]);
        assert_eq!(order("uptime", &all), [14, 13, 12]);
        assert_eq!(order("stop", &all), [13, 12, 14]);
        assert_eq!(order("reason", &all), [14, 12, 13]);
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let refused = |sort: &str, state| {
            let options = ConnzOptions {
                sort: sort.to_owned(),
                state,
                ..ConnzOptions::default()
            };
            Selection::new(&options, |_| None).err()
        };
        assert_eq!(
            refused("bad", OPEN).as_deref(),
            Some("invalid sorting option: bad")
        );
        assert_eq!(
            refused("stop", ALL).as_deref(),
            Some("sort by stop only valid on closed connections")
        );
        assert_eq!(refused("reason", CLOSED), None);
    }

    #[test]
    fn pages_of_several_workers_become_one() {
        let options = ConnzOptions {
            limit: 2,
            offset: 1,
            ..ConnzOptions::default()
        };
        let Ok(selection) = Selection::new(&options, |_| None) else {
            panic!("valid")
        };
        let record = |cid| Record {
            figures: figures(cid),
            info: Box::new(ConnInfo {
                cid,
                ..ConnInfo::default()
            }),
        };
        let page = Page {
            total: 9,
            records: [5, 8, 9, 6, 7].map(record).to_vec(),
        };
        let connz = merge(&selection, page, "N", Time::ZERO);
        assert_eq!(
            connz
                .connections
                .iter()
                .flatten()
                .map(|c| c.cid)
                .collect::<Vec<_>>(),
            [6, 7]
        );
        assert_eq!(
            (connz.num_connections, connz.total, connz.offset, connz.limit),
            (2, 9, 1, 2)
        );
        let options = ConnzOptions {
            acc: "NOPE".to_owned(),
            ..ConnzOptions::default()
        };
        let Ok(nobody) = Selection::new(&options, |_| None) else {
            panic!("valid")
        };
        let connz = merge(&nobody, Page::default(), "N", Time::ZERO);
        assert_eq!((&*connz.server_id, connz.connections), ("", None));
    }
}
