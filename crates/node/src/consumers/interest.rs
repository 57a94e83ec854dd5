//! Whether somebody listens to push consumers.

use super::leading::Push;
use crate::groups::Machine;
use crate::interest::{Root, Target};
use crate::worker::Core;
use std::collections::BTreeSet;
use std::time::Duration;
use tidelock_base::{ConsumerId, GroupId, Mono};

/// With several workers, another one's change of interest does not begin a turn here: it is looked for this often.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// An account whose interest matters to push consumers.
#[derive(Default)]
pub(super) struct Watch {
    /// Version of the interest that was looked at last.
    version: u64,
    /// Groups with push consumers.
    groups: BTreeSet<GroupId>,
    /// When to look again, whatever happens.
    pub(super) again_at: Option<Mono>,
}

impl Push {
    /// Whether somebody listens; `None` if nothing has changed since the last look.
    pub(super) fn look(&mut self, root: &Root) -> Option<bool> {
        let generation = root.generation(&self.subject);
        if self.generation.replace(generation) == Some(generation) {
            return None;
        }
        // Whoever listens to more than this subject, as somebody who watches all that goes on, is not who it is for.
        let targets = root.tree.targets(&self.subject);
        let is_for = |target: &Target| match target {
            Target::Client(client) => client.queue == self.group,
            Target::Node(node) => node.queue == self.group,
            Target::Stream(_) | Target::Service(_) => self.group.is_none(),
        };
        Some(targets.is_some_and(|targets| targets.iter().any(is_for)))
    }
}

impl Core {
    /// A group that is led here has, or may have, push consumers: its account's interest is watched.
    pub(super) fn watch(&mut self, group: GroupId) {
        let Some(slot) = self.slot(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let account = slot.account;
        if stream
            .consumers()
            .any(|consumer| consumer.config().push.is_some())
        {
            let again_at = (self.shared.workers > 1).then(|| self.now.mono + LOOK_EVERY);
            let watch = self.consumers.watches.entry(account).or_default();
            watch.groups.insert(group);
            watch.again_at = watch.again_at.or(again_at);
        }
    }

    /// Looks whether somebody listens to a consumer already, as the answer to its creation says.
    pub(crate) fn look_at_new(&mut self, group: GroupId, id: ConsumerId) {
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        let now = self.now.mono;
        let (root, _) = self.root(account);
        if let Some(slot) = self.slot_mut(group)
            && let Some(one) = slot.consumers.consumers.get_mut(&id)
        {
            one.look(now, &root);
            slot.consumers.touch(id);
        }
    }

    /// Looks for push consumers whose interest has changed. Cheap as long as no interest changes.
    pub(super) fn look_at_interest(&mut self) {
        if self.consumers.watches.is_empty() {
            return;
        }
        let now = self.now.mono;
        let mut watches = std::mem::take(&mut self.consumers.watches);
        watches.retain(|account, watch| {
            if watch.again_at.is_some_and(|at| at <= now) {
                watch.again_at = Some(now + LOOK_EVERY);
            }
            let (root, version) = self.root(*account);
            if std::mem::replace(&mut watch.version, version) == version {
                return true;
            }
            watch.groups.retain(|group| self.look_at_group(*group, &root));
            !watch.groups.is_empty()
        });
        self.consumers.watches = watches;
    }

    /// Marks the push consumers of a group whose interest has changed; `false` if it has none.
    fn look_at_group(&mut self, group: GroupId, root: &Root) -> bool {
        let Some(slot) = self.slot(group).filter(|slot| slot.leads) else {
            return false;
        };
        let mut any = false;
        let mut changed: Vec<ConsumerId> = Vec::new();
        for (id, one) in &slot.consumers.consumers {
            let Some(push) = &one.push else { continue };
            any = true;
            if push.generation != Some(root.generation(&push.subject)) {
                changed.push(*id);
            }
        }
        if !changed.is_empty()
            && let Some(slot) = self.slot_mut(group)
        {
            changed.into_iter().for_each(|id| slot.consumers.touch(id));
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interest::{Change, ClientTarget, ConnKey, Interest, NodeTarget};
    use bytes::Bytes;
    use std::sync::Arc;
    use tidelock_base::{NodeId, WorkerId};
    use tidelock_session::SubSlot;

    fn client(queue: Option<&str>) -> Target {
        Target::Client(ClientTarget {
            worker: WorkerId(0),
            conn: ConnKey {
                index: 1,
                generation: 1,
            },
            slot: SubSlot(0),
            queue: queue.map(|queue| queue.as_bytes().into()),
        })
    }

    fn push(group: Option<&str>) -> Push {
        let group = group.map(|group| Arc::from(group.as_bytes()));
        Push {
            subject: Bytes::from_static(b"deliver.x"),
            group,
            generation: None,
        }
    }

    #[test]
    fn a_consumer_with_a_group_needs_a_member_of_it() {
        let interest = Interest::default();
        let (mut plain, mut grouped) = (push(None), push(Some("workers")));
        let root = interest.load();
        assert_eq!(
            (plain.look(&root), grouped.look(&root)),
            (Some(false), Some(false))
        );
        assert_eq!(
            (plain.look(&root), grouped.look(&root)),
            (None, None),
            "nothing has changed"
        );

        let insert =
            |filter: &str, queue: Option<&str>| Change::Insert(filter.as_bytes().into(), client(queue));
        let root = interest.commit(&[
            insert("deliver.*", None),
            insert("deliver.>", Some("workers")),
            insert("deliver.x", Some("others")),
        ]);
        assert_eq!(
            (plain.look(&root), grouped.look(&root)),
            (Some(false), Some(false)),
            "none of them listens to it, in its group"
        );
        let root = interest.commit(&[insert("deliver.x", None)]);
        assert_eq!(
            (plain.look(&root), grouped.look(&root)),
            (Some(true), Some(false))
        );

        let queue = Some(Arc::from(&b"workers"[..]));
        let node = Target::Node(NodeTarget {
            node: NodeId(7),
            queue,
            weight: 3,
        });
        let root = interest.commit(&[Change::Insert(b"deliver.x".to_vec().into(), node)]);
        assert_eq!(grouped.look(&root), Some(true));
    }
}
