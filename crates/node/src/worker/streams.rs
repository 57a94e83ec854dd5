//! Services of the node that clients reach by publishing.

use super::{Core, Worker};
use crate::deliver_batch::Message;
use crate::interest::{Change, ConnKey, Service, Target};
use std::sync::Arc;
use tidelock_base::AccountId;
use tidelock_record::Disk;
use tidelock_wal::{Lane, Recovered};

/// What a node needs to open its store: the lane of each worker, and what was found in it.
pub(super) type OpenedLane = (Lane, Recovered);

impl Core {
    /// Hands a message to a service; answers whether somebody will deal with it.
    pub(crate) fn serve(
        &mut self,
        service: Service,
        conn: Option<ConnKey>,
        account: AccountId,
        message: &Message<'_>,
    ) -> bool {
        match service {
            Service::JetStreamApi => self.api_entry(conn, account, message),
            Service::Ack => self.ack_entry(conn, account, message),
            Service::FlowControl => self.flow_entry(conn, account, message),
            Service::System => self.system_entry(conn, account, message),
            Service::Inbox => self.source_entry(account, message),
        }
    }

    /// Enters the services of the node into the interest of the accounts that have them.
    fn enter_services(&mut self) {
        let shared = Arc::clone(&self.shared);
        for account in &shared.accounts {
            let mut changes = Vec::new();
            let mut add = |filter: &[u8], service| {
                changes.push(Change::Insert(filter.into(), Target::Service(service)));
            };
            if self.shared.options.jetstream.is_some() {
                add(b"$JS.API.>", Service::JetStreamApi);
                if let Some(domain) = shared
                    .options
                    .jetstream
                    .as_ref()
                    .and_then(|js| js.domain.as_ref())
                {
                    add(format!("$JS.{domain}.API.>").as_bytes(), Service::JetStreamApi);
                }
            }
            if account.jetstream.is_some() {
                add(b"$JS.ACK.>", Service::Ack);
                add(b"$JS.FC.>", Service::FlowControl);
            }
            account.interest.commit(&changes);
        }
    }

    /// Notes which connection is read: a sync in the worker itself must not make another wait.
    pub(super) fn note_reader(&mut self, key: ConnKey) {
        if self.last_reader != Some(key) {
            self.last_reader = Some(key);
            self.readers_quiet_since = self.now.mono;
        }
    }
}

impl Worker {
    /// Starts the worker's part of JetStream: opens its groups, and begins to form or join a cluster. The groups of
    /// all workers have been placed before ([`crate::NodeShared::place_groups`]).
    ///
    /// # Errors
    /// When the metadata of the store cannot be read and no other server can have it, when files of different stores were
    /// mixed, or when a group was placed at another worker; the text is for the log.
    pub fn start(
        &mut self,
        lane: Option<OpenedLane>,
        disk: Option<Arc<dyn Disk + Send + Sync>>,
    ) -> Result<(), String> {
        if self.core.id.0 == 0 {
            self.core.enter_services();
        }
        if let (Some((lane, recovered)), Some(disk)) = (lane, disk) {
            if let Some(group) = recovered
                .groups
                .keys()
                .find(|group| self.core.shared.worker_of(**group) != self.core.id)
            {
                return Err(format!(
                    "group {group} is in the lane of another worker than it was placed at"
                ));
            }
            self.core.open_groups(lane, recovered, &disk);
        }
        self.core.begin_formation()?;
        self.core.follow_listing();
        Ok(())
    }
}
