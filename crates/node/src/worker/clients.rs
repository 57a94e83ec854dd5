//! Client connections of a worker: from accept to close, and what the reading half of a connection asks for.

use super::route_message::{From, Source};
use super::{ClientPlace, Core};
use crate::deliver_batch::Message;
use crate::interest::{Change, ClientTarget, ConnKey, Target};
use crate::route::{RouteId, Routes};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidelock_auth::{ConnectionType, Credentials, PasswordCheck, Verdict};
use tidelock_base::{API_LEVEL, AccountId, COMPATIBLE_VERSION, ConnId, Mono, Now, TIDELOCK_VERSION};
use tidelock_session::{
    AuthFailure, Authentication, ChunkPool, CloseReason, Delivered, Host, Identity, LogLevel, Outbound,
    Publish, SubSlot,
};
use tidelock_wire::{Connect, Info};

/// A client connection, but for its reading half.
pub(crate) struct Client {
    /// Number that operators see.
    pub(crate) cid: ConnId,
    /// `ip:port - cid:N`, for log lines.
    pub(crate) label: String,
    /// The other side.
    pub(crate) remote: SocketAddr,
    /// Subscriptions and output.
    pub(crate) outbound: Outbound,
    /// Who it is, once known.
    pub(crate) identity: Option<Identity>,
    /// What CONNECT said.
    pub(crate) connect: Connect,
    /// When it was accepted.
    pub(crate) start: Now,
    /// When something last came from it or went to it.
    pub(crate) last_activity: Now,
    /// It is on the list of what has to be written.
    pub(crate) dirty: bool,
    /// Nothing is read from it until then, or until its receiver has caught up.
    pub(crate) paused_until: Option<Mono>,
    /// Publishers that wait until this receiver has caught up.
    pub(crate) waiters: Vec<ConnKey>,
    /// Its password is being checked; nothing is read meanwhile.
    pub(crate) asking: bool,
    /// Why it is about to be closed.
    pub(crate) closing: Option<CloseReason>,
    /// How often it was paused because its receivers were behind.
    pub(crate) stalls: u64,
    /// Shows its protocol in the log, where that is asked for.
    pub(crate) trace: Option<Box<crate::system::Traces>>,
    /// What its requests must not overtake.
    pub(crate) published: crate::forward::Published,
    last_route: LastRoute,
    armed: Option<Mono>,
}

/// The route of the last publish: most connections publish to one subject many times in a row.
#[derive(Default)]
struct LastRoute {
    subject: Vec<u8>,
    id: Option<RouteId>,
    epoch: u64,
    version: u64,
}

impl Client {
    /// The account it is bound to.
    pub(crate) fn account(&self) -> Option<AccountId> {
        self.identity.as_ref().map(|identity| identity.account)
    }

    /// What stands in front of its lines in the log once it is let in: where it comes from, what it says that it is, and as
    /// whom.
    fn full_label(&self) -> String {
        let Connect {
            version, lang, name, ..
        } = &self.connect;
        let version = if version.is_empty() {
            String::new()
        } else {
            format!("v{version}")
        };
        let software: Vec<&str> = [&*version, &**lang, &**name]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        let mut label = format!("{} - cid:{}", self.remote, self.cid);
        if !software.is_empty() {
            label.push_str(&format!(" - {:?}", software.join(":")));
        }
        let Some(identity) = &self.identity else {
            return label;
        };
        let account = &identity.account_name;
        let user = if self.connect.user.is_empty() {
            &*identity.user
        } else {
            &*self.connect.user
        };
        if !self.connect.auth_token.is_empty() {
            label.push_str(&format!(" - {:?}", format!("{account}/token")));
        } else if !user.is_empty() {
            label.push_str(&format!(" - {:?}", format!("{account}/user:{user}")));
        }
        label
    }
}

impl Core {
    /// Makes a place for a connection.
    pub(super) fn add_client(&mut self, remote: SocketAddr) -> ConnKey {
        let cid = ConnId(self.shared.next_cid());
        let client = Client {
            cid,
            label: format!("{remote} - cid:{cid}"),
            remote,
            outbound: Outbound::new(&self.settings),
            identity: None,
            connect: Connect::default(),
            start: self.now,
            last_activity: self.now,
            dirty: false,
            paused_until: None,
            waiters: Vec::new(),
            asking: false,
            closing: None,
            stalls: 0,
            trace: crate::system::Traces::of(&self.shared.options.log),
            published: crate::forward::Published::default(),
            last_route: LastRoute::default(),
            armed: None,
        };
        tracing::debug!("{} - Client connection created", client.label);
        let key = self.new_key();
        if let Some(place) = self.clients.get_mut(key.index as usize) {
            place.client = Some(client);
        }
        self.shared.totals.connections.fetch_add(1, Ordering::Relaxed);
        self.shared
            .totals
            .total_connections
            .fetch_add(1, Ordering::Relaxed);
        key
    }

    /// A fresh connection key.
    pub(super) fn new_key(&mut self) -> ConnKey {
        if let Some(index) = self.free.pop()
            && let Some(place) = self.clients.get_mut(index as usize)
        {
            return ConnKey {
                index,
                generation: place.generation,
            };
        }
        let index = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
        self.clients.push(ClientPlace {
            generation: 1,
            client: None,
        });
        ConnKey { index, generation: 1 }
    }

    /// Frees a key; targets that still name it are ignored from now on.
    pub(super) fn free_key(&mut self, key: ConnKey) {
        if let Some(place) = self.clients.get_mut(key.index as usize)
            && place.generation == key.generation
        {
            place.generation = place.generation.wrapping_add(1);
            place.client = None;
            self.free.push(key.index);
        }
    }

    /// INFO for one client.
    pub(crate) fn client_info(&mut self, key: ConnKey, first: bool) -> Info {
        let shared = Arc::clone(&self.shared);
        let addresses = shared.addresses.load();
        let options = &shared.options;
        let users = &options.users;
        let peers = shared.peer_client_urls.load();
        let advertise = options
            .cluster
            .as_ref()
            .is_none_or(|cluster| !cluster.no_advertise);
        let mut connect_urls = Vec::new();
        if advertise && !peers.is_empty() {
            let lame_duck = shared.lame_duck.load(Ordering::Relaxed);
            let own = addresses.client_urls.iter().filter(|_| !lame_duck);
            connect_urls = own.chain(peers.iter()).map(|url| url.to_string()).collect();
        }
        let mut info = Info {
            server_id: shared.identity.server_id.to_string(),
            server_name: shared.identity.name.to_string(),
            version: COMPATIBLE_VERSION.to_owned(),
            proto: 1,
            go: concat!("rust", env!("CARGO_PKG_RUST_VERSION")).to_owned(),
            host: addresses.client_host.clone(),
            port: addresses.client_port,
            headers: true,
            auth_required: users.required() && (!first || !users.has_no_auth_user()),
            max_payload: i64::from(options.limits.max_payload),
            jetstream: options.jetstream.is_some(),
            cluster: shared.cluster_name().as_deref().unwrap_or_default().to_owned(),
            cluster_dynamic: options.cluster.is_some() && options.cluster_name.is_none(),
            domain: options
                .jetstream
                .as_ref()
                .and_then(|js| js.domain.clone())
                .unwrap_or_default(),
            connect_urls,
            lame_duck_mode: shared.lame_duck.load(Ordering::Relaxed),
            api_lvl: API_LEVEL,
            tidelock: TIDELOCK_VERSION.to_owned(),
            ..Info::default()
        };
        if let Some(client) = self.client(key) {
            info.client_id = client.cid.0;
            info.client_ip = client.remote.ip().to_string();
            if let Some(identity) = client.identity.as_ref().filter(|_| !first) {
                info.connect_info = true;
                info.remote_account = identity.account_name.to_string();
                info.acc_is_sys = identity.is_system;
                if let Some(limit) = identity.max_payload {
                    info.max_payload = info.max_payload.min(i64::try_from(limit).unwrap_or(i64::MAX));
                }
            }
        }
        info
    }

    /// Takes a subscription that had its last message out of interest.
    pub(super) fn drop_subscription(&mut self, key: ConnKey, slot: SubSlot) {
        self.withdraw(key, slot);
        if let Some(client) = self.client(key) {
            client.outbound.remove(slot);
        }
    }

    /// Notes that a subscription leaves interest.
    fn withdraw(&mut self, key: ConnKey, slot: SubSlot) {
        if let Some((account, filter, target)) = self.target_of(key, slot) {
            self.shared.count_subscription(account, false);
            self.change_interest(account, Change::Remove(filter, target));
        }
    }

    fn target_of(&mut self, key: ConnKey, slot: SubSlot) -> Option<(AccountId, Box<[u8]>, Target)> {
        let worker = self.id;
        let client = self.client(key)?;
        let account = client.account()?;
        let sub = client.outbound.sub(slot)?;
        let target = ClientTarget {
            worker,
            conn: key,
            slot,
            queue: sub.queue().cloned(),
        };
        Some((account, Box::from(&**sub.subject()), Target::Client(target)))
    }

    /// Takes all subscriptions of a connection out of interest.
    pub(super) fn withdraw_all(&mut self, key: ConnKey) {
        let slots: Vec<SubSlot> = self
            .client(key)
            .map(|c| c.outbound.subs().map(|(slot, _)| slot).collect())
            .unwrap_or_default();
        for slot in slots {
            self.withdraw(key, slot);
        }
    }

    /// Lists a connection for closing; what is queued for it is still written, unless it is too slow for that.
    pub(crate) fn close(&mut self, key: ConnKey, reason: CloseReason) {
        let Some(client) = self.client(key) else { return };
        if client.closing.is_some() {
            return;
        }
        client.closing = Some(reason);
        client.outbound.close();
        self.out.closing.push((key, reason));
    }

    /// Lets the publishers go on that waited for a receiver.
    pub(super) fn release_waiters(&mut self, key: ConnKey) {
        let Some(client) = self.client(key) else { return };
        for waiter in std::mem::take(&mut client.waiters) {
            self.resume(waiter);
        }
    }

    /// Lets a paused connection go on.
    pub(crate) fn resume(&mut self, key: ConnKey) {
        if let Some(client) = self.client(key)
            && client.paused_until.take().is_some()
        {
            self.out.resumed.push(key);
        }
    }

    /// Asks for a tick of a connection at `at`.
    pub(crate) fn arm(&mut self, at: Mono, key: ConnKey) {
        let Some(client) = self.client(key) else { return };
        if client.armed.is_none_or(|armed| at < armed) {
            client.armed = Some(at);
            self.timers.arm(at, key);
        }
    }

    pub(super) fn disarmed(&mut self, key: ConnKey) {
        if let Some(client) = self.client(key) {
            client.armed = None;
        }
    }

    /// Routes a client's publish.
    fn publish(&mut self, key: ConnKey, message: &Publish<'_>) {
        let Some(client) = self.client(key) else { return };
        let Some(account) = client.account() else { return };
        let from = From {
            conn: Some(key),
            to_nodes: true,
            to_streams: true,
        };
        let source = Source::Client(message);
        let got = if Routes::is_unique(message.subject) {
            let (root, _) = self.root(account);
            let mut route = self.spare_routes.pop().unwrap_or_default();
            route.fill(&root, message.subject, self.id);
            let got = self.deliver(from, account, &route, &source);
            self.spare_routes.push(route);
            got
        } else {
            let id = self.route_of(key, account, message.subject);
            let route = self.routes.take(id);
            let got = self.deliver(from, account, &route, &source);
            self.routes.put(id, route);
            got
        };
        if !got && let Some(reply) = message.reply {
            self.no_responders(key, reply, message.subject);
        }
    }

    /// The route of a publish: the connection's last one if the subject is the same and interest has not changed,
    /// else from the cache.
    fn route_of(&mut self, key: ConnKey, account: AccountId, subject: &[u8]) -> RouteId {
        let version = self.interest_version(account);
        let epoch = self.routes.epoch();
        let place = self
            .clients
            .get(key.index as usize)
            .and_then(|place| place.client.as_ref());
        if let Some(last) = place.map(|client| &client.last_route)
            && let Some(id) = last.id
            && last.version == version
            && last.epoch == epoch
            && last.subject == subject
        {
            return id;
        }
        let (root, version) = self.root(account);
        let id = self.routes.cached(&root, account, subject);
        let epoch = self.routes.epoch();
        if let Some(client) = self.client(key) {
            let last = &mut client.last_route;
            last.subject.clear();
            last.subject.extend_from_slice(subject);
            (last.id, last.epoch, last.version) = (Some(id), epoch, version);
        }
        id
    }

    /// Tells a client that asked for it that nobody received its request.
    fn no_responders(&mut self, key: ConnKey, reply: &[u8], subject: &[u8]) {
        let now = self.now.mono;
        let Some(place) = self.clients.get_mut(key.index as usize) else {
            return;
        };
        let Some(client) = place
            .client
            .as_mut()
            .filter(|client| client.outbound.no_responders())
        else {
            return;
        };
        let waiting = client
            .outbound
            .subs()
            .find(|(_, sub)| sub.queue().is_none() && tidelock_subject::matches(sub.subject(), reply))
            .map(|(slot, _)| slot);
        let Some(slot) = waiting else { return };
        let delivered = client
            .outbound
            .deliver_no_responders(slot, reply, subject, now, &mut self.pool);
        self.mark_dirty(key);
        if let Delivered::AutoUnsubscribed(slot) = delivered {
            self.drop_subscription(key, slot);
        }
    }

    /// Sends a message to one subscription's connection only if it is there; used for status messages.
    pub(crate) fn publish_to(
        &mut self,
        account: AccountId,
        subject: &[u8],
        header: &[u8],
        payload: &[u8],
    ) -> bool {
        let message = Message {
            subject,
            target: subject,
            reply: b"",
            header,
            payload,
            shared: None,
        };
        self.publish_made(account, &message)
    }
}

/// The worker as the reading half of one connection sees it.
pub(super) struct ClientHost<'a> {
    pub(super) core: &'a mut Core,
    pub(super) key: ConnKey,
    /// A password check that takes time, to be run by the shell.
    pub(super) slow_check: Option<PasswordCheck>,
    /// Stands in when the connection is gone already.
    pub(super) nobody: &'a mut Outbound,
}

impl Host for ClientHost<'_> {
    fn outbound(&mut self) -> (&mut Outbound, &mut ChunkPool) {
        let Core { clients, pool, .. } = &mut *self.core;
        let place = clients.get_mut(self.key.index as usize);
        let client = place.and_then(|place| place.client.as_mut());
        (
            client.map_or(&mut *self.nobody, |client| &mut client.outbound),
            pool,
        )
    }

    fn authenticate(&mut self, connect: &Connect) -> Authentication {
        let verdict = self.core.shared.options.users.authenticate(&Credentials {
            user: &connect.user,
            pass: &connect.pass,
            token: &connect.auth_token,
            other: !connect.nkey.is_empty() || !connect.jwt.is_empty() || !connect.sig.is_empty(),
            connection: ConnectionType::Standard,
        });
        if let Some(client) = self.core.client(self.key) {
            client.connect = connect.clone();
        }
        match verdict {
            Verdict::Accepted(identity) => self.core.admit(self.key, &identity),
            Verdict::Refused => Authentication::Refused(AuthFailure::Violation),
            Verdict::Slow(check) => {
                self.slow_check = Some(check);
                Authentication::Pending
            }
        }
    }

    #[inline]
    fn publish(&mut self, message: &Publish<'_>) {
        self.core.publish(self.key, message);
    }

    fn subscribed(&mut self, slot: SubSlot) {
        if let Some((account, filter, target)) = self.core.target_of(self.key, slot) {
            self.core.shared.count_subscription(account, true);
            self.core.change_interest(account, Change::Insert(filter, target));
        }
    }

    fn unsubscribed(&mut self, slot: SubSlot) {
        self.core.withdraw(self.key, slot);
    }

    fn first_pong(&mut self) -> Option<Info> {
        Some(self.core.client_info(self.key, false))
    }

    fn log(&mut self, level: LogLevel, text: fmt::Arguments<'_>) {
        let label = self
            .core
            .client(self.key)
            .map(|client| client.label.clone())
            .unwrap_or_default();
        match level {
            LogLevel::Error => tracing::error!("{label} - {text}"),
            LogLevel::Warn => tracing::warn!("{label} - {text}"),
            LogLevel::Debug => tracing::debug!("{label} - {text}"),
        }
    }
}

impl Core {
    /// Binds a connection to its account, within the account's limits.
    pub(super) fn admit(&mut self, key: ConnKey, identity: &tidelock_auth::Identity) -> Authentication {
        let shared = Arc::clone(&self.shared);
        let Some(account) = shared
            .account_id(&identity.account)
            .and_then(|id| shared.account(id))
        else {
            return Authentication::Refused(AuthFailure::AccountRegistration);
        };
        let before = self.client(key).and_then(|client| client.account());
        if before != Some(account.id) {
            let taken = account.connections.load(Ordering::Relaxed);
            if u64::try_from(identity.limits.max_connections).is_ok_and(|max| taken >= max) {
                return Authentication::Refused(AuthFailure::AccountConnectionsExceeded);
            }
            account.connections.fetch_add(1, Ordering::Relaxed);
            if let Some(before) = before.and_then(|id| shared.account(id)) {
                before.connections.fetch_sub(1, Ordering::Relaxed);
            }
            self.client_connected(key);
        }
        let permissions =
            (!identity.permissions.is_unrestricted()).then(|| Arc::clone(&identity.permissions));
        let bound = Identity {
            account: account.id,
            account_name: Arc::clone(&account.name),
            is_system: account.system,
            user: Arc::clone(&identity.user),
            permissions,
            max_payload: usize::try_from(identity.limits.max_payload).ok(),
            max_subscriptions: usize::try_from(identity.limits.max_subscriptions).ok(),
        };
        if let Some(client) = self.client(key) {
            client.identity = Some(bound.clone());
            client.label = client.full_label();
        }
        Authentication::Accepted(bound)
    }
}
