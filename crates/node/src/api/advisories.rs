//! Advisories of the API, published where somebody listens.

use super::Asker;
use crate::cell::Request;
use crate::deliver_batch::Message;
use crate::worker::Core;
use bytes::Bytes;
use tidelock_api::advisory::{
    Action, Advisory, ApiAudit, ApiLimitReached, ConsumerLeaderElected, StreamAction, StreamLeaderElected,
    advisory,
};
use tidelock_api::event::ClientInfo;
use tidelock_api::{PeerInfo, Time};
use tidelock_base::{AccountId, GroupId};

/// Letters of an advisory's id.
const ID_LENGTH: usize = 22;

/// See [`Core::elected`].
struct Elected {
    account: AccountId,
    stream: String,
    leader: String,
    replicas: Vec<PeerInfo>,
    domain: String,
}

impl Core {
    /// Publishes an advisory if somebody listens.
    pub(super) fn publish_advisory(&mut self, account: AccountId, body: &impl Advisory) {
        let subject = body.subject();
        if !self.is_heard(account, subject.as_bytes()) {
            return;
        }
        let id = self.random_name(ID_LENGTH);
        let payload = advisory(body, &id, Time(self.now.wall));
        let subject = subject.as_bytes();
        let message = Message {
            subject,
            target: subject,
            reply: b"",
            header: b"",
            payload: &payload,
            shared: None,
        };
        self.publish_made(account, &message);
    }

    /// Whether somebody listens to a subject.
    fn is_heard(&mut self, account: AccountId, subject: &[u8]) -> bool {
        self.root(account).0.tree.has_match(subject)
    }

    /// A stream was created, changed or deleted.
    pub(super) fn stream_advisory(&mut self, account: AccountId, stream: &str, action: Action) {
        let domain = self.domain();
        self.publish_advisory(
            account,
            &StreamAction {
                stream,
                action,
                domain: &domain,
            },
        );
    }

    /// This server leads a stream with several replicas now, and its consumers with it.
    pub(crate) fn stream_leader_elected(&mut self, group: GroupId) {
        let Some(elected) = self.elected(group) else {
            return;
        };
        for (to, account) in self.told_of_leaders(elected.account) {
            let body = StreamLeaderElected {
                account: &account,
                stream: &elected.stream,
                leader: &elected.leader,
                replicas: &elected.replicas,
                domain: &elected.domain,
            };
            self.publish_advisory(to, &body);
        }
        let names: Vec<String> = self
            .stream(group)
            .into_iter()
            .flat_map(|stream| stream.users_consumers().map(|one| one.name().to_owned()))
            .collect();
        for name in names {
            self.tell_of_consumer_leader(&elected, &name);
        }
    }

    /// This server leads a consumer now. Where the stream has one replica nobody is elected.
    pub(super) fn consumer_leader_elected(&mut self, group: GroupId, consumer: &str) {
        if let Some(elected) = self.elected(group) {
            self.tell_of_consumer_leader(&elected, consumer);
        }
    }

    fn tell_of_consumer_leader(&mut self, elected: &Elected, consumer: &str) {
        for (to, account) in self.told_of_leaders(elected.account) {
            let body = ConsumerLeaderElected {
                account: &account,
                stream: &elected.stream,
                consumer,
                leader: &elected.leader,
                replicas: &elected.replicas,
                domain: &elected.domain,
            };
            self.publish_advisory(to, &body);
        }
    }

    /// Which accounts are told of an account's leaders, and how its name stands in what they are told: the system
    /// account needs it, the account itself does not.
    fn told_of_leaders(&self, account: AccountId) -> Vec<(AccountId, String)> {
        let system = self.shared.system_account().map(|system| system.id);
        let system = system.map(|system| (system, self.account_name(account)));
        [(account, String::new())].into_iter().chain(system).collect()
    }

    /// What advisories say of a stream that is led here, if it has several replicas.
    fn elected(&self, group: GroupId) -> Option<Elected> {
        let slot = self
            .slot(group)
            .filter(|slot| slot.leads && slot.replicas.len() > 1)?;
        Some(Elected {
            account: slot.account,
            stream: slot.name.to_string(),
            leader: self.shared.identity.name.to_string(),
            replicas: self.all_peers(slot),
            domain: self.domain(),
        })
    }

    /// A request was answered.
    pub(super) fn audit(&mut self, asker: Asker, request: &Request, response: &Bytes) {
        if !self.is_heard(request.account, b"$JS.EVENT.ADVISORY.API") {
            return;
        }
        let client = self.client_described(asker, request.account);
        let server = self.shared.identity.name.to_string();
        let domain = self.domain();
        let body = ApiAudit {
            server: &server,
            client: &client,
            subject: &String::from_utf8_lossy(&request.subject),
            request: &String::from_utf8_lossy(&request.payload),
            response: &String::from_utf8_lossy(response),
            domain: &domain,
        };
        self.publish_advisory(request.account, &body);
    }

    /// Who asks, as advisories show it.
    fn client_described(&mut self, asker: Asker, account: AccountId) -> ClientInfo {
        let mut info = ClientInfo {
            account: self.account_name(account),
            server: self.shared.identity.name.to_string(),
            cluster: self
                .shared
                .cluster_name()
                .map(|name| name.to_string())
                .unwrap_or_default(),
            ..ClientInfo::default()
        };
        if let Some(client) = asker.and_then(|key| self.client(key)) {
            info.start = Some(Time(client.start.wall));
            info.host = client.remote.ip().to_string();
            info.id = client.cid.0;
            info.user = client
                .identity
                .as_ref()
                .map(|identity| identity.user.to_string())
                .unwrap_or_default();
            info.name.clone_from(&client.connect.name);
            info.lang.clone_from(&client.connect.lang);
            info.ver.clone_from(&client.connect.version);
            info.kind = "Client".to_owned();
            info.client_type = "nats".to_owned();
        } else {
            info.kind = "JetStream".to_owned();
        }
        info
    }

    /// Tells operators of requests that were dropped.
    pub(super) fn report_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.api.dropped);
        let Some(account) = self
            .shared
            .system_account()
            .filter(|_| dropped > 0)
            .map(|account| account.id)
        else {
            return;
        };
        tracing::warn!("JetStream API queue limit reached, dropped {dropped} requests");
        let server = self.shared.identity.name.to_string();
        let domain = self.domain();
        self.publish_advisory(
            account,
            &ApiLimitReached {
                server: &server,
                domain: &domain,
                dropped,
            },
        );
    }
}
