//! Publishes into streams, and services of the node.

use super::Core;
use crate::deliver_batch::Message;
use crate::interest::{ConnKey, Service};
use tidelock_base::{AccountId, GroupId};

impl Core {
    pub(crate) fn publish_into(&mut self, _group: GroupId, _from: Option<ConnKey>, _account: AccountId, _m: &Message<'_>) {}
    pub(crate) fn serve(&mut self, _s: Service, _from: Option<ConnKey>, _account: AccountId, _m: &Message<'_>) -> bool {
        false
    }
}
