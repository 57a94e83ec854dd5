//! Whether there is room: what a group counts for, which publishes are let in, and looking after the disk's free space.
//!
//! Publishes are let in or refused before they are logged (DESIGN section 2: admission checks, never outcomes of
//! apply). Those of this worker's own clients are refused where they come in. One that has travelled under a number
//! gets its refusal through the log all the same, as any outcome, so that it is judged once.
//!
//! An account pays for each replica of a message, as on nats-server. What it has in streams without a replica on the
//! server that leads the one in question is not seen.
//!
//! In nats-server's order: the server as a whole (10023) refuses what comes when it holds more than it may; an account
//! (10002) refuses what would take it beyond. Everything but publishes and copied messages is always let in.

use super::{Machine, Slot};
use crate::cell::Forward;
use crate::deliver_batch::Message;
use crate::room::low_water;
use crate::shared::Account;
use crate::worker::{Core, IoJob, IoOwner};
use bytes::Bytes;
use std::time::Duration;
use tidelock_base::{ApiErrorCode, GroupId, Mono};
use tidelock_jetstream::config::Storage;
use tidelock_record::{FilePath, IoDone, IoError, IoOp, IoOutput, Records};

/// The disk is asked for its free space this often, by one worker.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// So much may come in before it is asked again, until it is known how much there is.
const ASK_BYTES: u64 = 1 << 20;

/// Bytes that are counted for a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    /// By the server.
    server: u64,
    /// By the account: once for each replica.
    account: u64,
}

/// Looking after the disk's free space.
#[derive(Debug, Default)]
pub(super) struct Space {
    ask_at: Option<Mono>,
    asked: bool,
    /// Bytes let in since it was asked for last, and how many may be.
    let_in: u64,
    ask_bytes: u64,
    reserve: Reserve,
}

/// A file that lies there for the checkpoint that lets a purged stream's files go, when the disk has nothing left:
/// it is written over then.
#[derive(Debug, Default)]
enum Reserve {
    /// None; one is made when there is room.
    #[default]
    None,
    Making(FilePath, u64),
    Kept(FilePath, u64),
    /// The next checkpoint may take it.
    Offered(FilePath, u64),
}

/// Most and least bytes of the reserve; between them it is a 64th of the file system.
const RESERVE_BYTES: (u64, u64) = (64 << 10, 4 << 20);
const RESERVE_PART: u64 = 64;
/// Pause after a checkpoint that could not be written.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(3);
/// A stream with so many files that only wait for a checkpoint gets one, so that a purge gives its space back.
const FILES_TO_GO_MAX: usize = 16;

impl Space {
    /// How a checkpoint is written: over the reserve, if that was offered and is large enough.
    pub(super) fn replace(&mut self, file: FilePath, data: Bytes) -> IoOp {
        match std::mem::take(&mut self.reserve) {
            Reserve::Offered(reserve, len) if data.len() as u64 <= len => {
                IoOp::ReplaceFrom { file, data, reserve }
            }
            Reserve::Offered(reserve, len) => {
                self.reserve = Reserve::Kept(reserve, len);
                IoOp::Replace { file, data }
            }
            other => {
                self.reserve = other;
                IoOp::Replace { file, data }
            }
        }
    }

    pub(super) const fn deadline(&self) -> Option<Mono> {
        self.ask_at
    }
}

/// What a stream may take at this moment.
#[derive(Clone, Copy, Debug)]
struct Gate {
    /// Bytes until the server holds more than it may; what goes beyond is still taken.
    server: u64,
    /// Bytes of which the last message must fit.
    account: u64,
    /// How many times the account pays for a message.
    replicas: u64,
}

impl Gate {
    /// Lets one message in, or says why not.
    const fn pass(&mut self, bytes: u64) -> Result<(), Closed> {
        if self.server == 0 {
            return Err(Closed::Server);
        }
        let paid = bytes.saturating_mul(self.replicas);
        if paid > self.account {
            return Err(Closed::Account);
        }
        self.server = self.server.saturating_sub(bytes);
        self.account -= paid;
        Ok(())
    }
}

/// Why nothing is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    /// The disk or the log of the node.
    Disk,
    /// The server's limit.
    Server,
    /// The account's limit.
    Account,
}

impl Closed {
    const fn code(self) -> ApiErrorCode {
        match self {
            Self::Disk | Self::Server => ApiErrorCode::InsufficientResources,
            Self::Account => ApiErrorCode::AccountResourcesExceeded,
        }
    }
}

impl Core {
    /// Counts anew what a group holds. Called once an applied entry.
    pub(super) fn charge(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let bytes = stream.store().bytes();
        let before = std::mem::replace(
            &mut slot.charged,
            Charge {
                server: bytes,
                account: bytes.saturating_mul(slot.replicas.len() as u64),
            },
        );
        if before == slot.charged {
            return;
        }
        let (storage, now) = (stream.config().storage, slot.charged);
        self.shared.room.stored.change(storage, before.server, now.server);
        if let Some(account) = self.shared.account(slot.account) {
            account.stored.change(storage, before.account, now.account);
        }
    }

    /// A group is gone, and what it held.
    pub(super) fn discharge(&self, slot: &Slot) {
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let storage = stream.config().storage;
        self.shared.room.stored.change(storage, slot.charged.server, 0);
        if let Some(account) = self.shared.account(slot.account) {
            account.stored.change(storage, slot.charged.account, 0);
        }
    }

    /// What a stream of this worker may take.
    fn gate(&self, slot: &Slot) -> Result<Gate, Closed> {
        let Machine::Stream(stream) = &slot.machine else {
            return Err(Closed::Disk);
        };
        let room = &self.shared.room;
        let refused = slot.write_again_at.is_some() && slot.backlog() > self.shared.budgets.backlog;
        if slot.durable && (room.is_low() || !room.log_takes(self.id.0) || refused) {
            return Err(Closed::Disk);
        }
        let storage = stream.config().storage;
        let waiting = slot.queued_bytes();
        let (max, used) = (
            room.max(storage),
            room.stored.load(storage).saturating_add(waiting),
        );
        let account = self.shared.account(slot.account);
        let limit = account.and_then(|account| limit_of(account, storage));
        let in_account = account.map_or(0, |account| account.stored.load(storage));
        let replicas = slot.replicas.len() as u64;
        let waiting_in_account = waiting.saturating_mul(replicas);
        Ok(Gate {
            server: max.saturating_add(1).saturating_sub(used),
            account: limit.map_or(u64::MAX, |limit| {
                limit.saturating_sub(in_account.saturating_add(waiting_in_account))
            }),
            replicas,
        })
    }

    /// Why a publish into a stream is refused here and now, before it gets a number; `None` if it is let in, or if
    /// the stream's leader has to say so.
    pub(super) fn turns_away(&self, group: GroupId, message: &Message<'_>) -> Option<ApiErrorCode> {
        let Some(slot) = self.slot(group).filter(|slot| slot.leads) else {
            let here = self.leader_of(group) == Some(self.shared.identity.node);
            let owner = self.shared.worker_of(group).0;
            let closed = here && self.shared.room.log_is_broken(owner) && !self.is_in_memory(group);
            return closed.then_some(ApiErrorCode::InsufficientResources);
        };
        let Machine::Stream(stream) = &slot.machine else {
            return None;
        };
        let kind = stream.store().config().kind;
        let content = message.subject.len() + message.header.len() + message.payload.len();
        let bytes = kind.overhead_bytes(!message.header.is_empty()) + content as u64;
        let closed = self.gate(slot).and_then(|mut gate| gate.pass(bytes)).err()?;
        self.say_closed(slot, closed);
        Some(closed.code())
    }

    fn is_in_memory(&self, group: GroupId) -> bool {
        let directory = self.shared.directory.load();
        directory.by_group(group).is_some_and(|route| route.in_memory)
    }

    /// Why a stream takes no copies of messages from its origins.
    pub(crate) fn copies_turned_away(&self, group: GroupId, bytes: u64) -> Option<ApiErrorCode> {
        let slot = self.slot(group)?;
        let closed = self.gate(slot).and_then(|mut gate| gate.pass(bytes)).err()?;
        self.say_closed(slot, closed);
        Some(closed.code())
    }

    /// Says in nats-server's words that a limit is reached, once until there is room again.
    fn say_closed(&self, slot: &Slot, closed: Closed) {
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let storage = stream.config().storage;
        let kind = match storage {
            Storage::Memory => "memory",
            Storage::File => "file",
        };
        match closed {
            // Said when it began.
            Closed::Disk => {}
            Closed::Server => {
                if self.shared.room.stored.first_refusal(storage) {
                    tracing::error!("JetStream {kind} resource limits exceeded for server");
                }
            }
            Closed::Account => {
                if let Some(account) = self.shared.account(slot.account)
                    && account.stored.first_refusal(storage)
                {
                    tracing::warn!(
                        "JetStream {kind} resource limits exceeded for account: {:?}",
                        account.name
                    );
                }
            }
        }
    }

    /// Adds publishes that have come in under numbers to the open entry, and the refusals of those that are not let
    /// in. The group is led by this worker.
    pub(super) fn let_in(&mut self, forward: &Forward) {
        let Some(slot) = self.slot(forward.group) else {
            return;
        };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let kind = stream.store().config().kind;
        let len = forward.records.len() as u64;
        let gate = self.gate(slot);
        let whole = len.saturating_add(u64::from(forward.count) * kind.overhead_bytes(true));
        let (key, low_water) = (forward.sender, forward.low_water);
        if gate.is_ok_and(|gate| gate.server > whole && gate.account >= whole.saturating_mul(gate.replicas)) {
            self.has_room(slot);
            if let Some(slot) = self.slot_mut(forward.group) {
                slot.open_stream().publish_many(
                    key,
                    forward.first,
                    low_water,
                    forward.count,
                    &forward.records,
                );
            }
            return self.took_in(len);
        }
        let mut closed = None;
        let records = Records::new(&forward.records)
            .take(forward.count as usize)
            .flatten();
        for (number, record) in (forward.first..).zip(records) {
            let passed = match gate {
                Err(reason) => Err(reason),
                Ok(_) => self
                    .slot(forward.group)
                    .map_or(Err(Closed::Disk), |slot| self.gate(slot))
                    .and_then(|mut gate| gate.pass(kind.message_bytes(&record))),
            };
            let Some(slot) = self.slot_mut(forward.group) else {
                return;
            };
            match passed {
                Ok(()) => slot.open_stream().publish(key, number, low_water, record.bytes()),
                Err(reason) => {
                    closed = Some(reason);
                    slot.open_stream()
                        .refuse_many(key, number, low_water, 1, reason.code())
                }
            };
        }
        if let (Some(closed), Some(slot)) = (closed, self.slot(forward.group)) {
            self.say_closed(slot, closed);
        }
    }

    fn has_room(&self, slot: &Slot) {
        if let Machine::Stream(stream) = &slot.machine {
            let storage = stream.config().storage;
            self.shared.room.stored.has_room(storage);
            if let Some(account) = self.shared.account(slot.account) {
                account.stored.has_room(storage);
            }
        }
    }

    /// So much is on its way to the disk: it is asked sooner what it has left.
    fn took_in(&mut self, bytes: u64) {
        let space = &mut self.groups.space;
        space.let_in += bytes;
        if space.let_in >= space.ask_bytes.max(ASK_BYTES) {
            self.ask_for_space();
        }
    }

    /// Once a second: asks the disk what it has left, and has checkpoints written that let files go.
    pub(super) fn tick_space(&mut self) {
        let now = self.now.mono;
        if self.disk.is_none() || self.groups.slots.is_empty() {
            self.groups.space.ask_at = None;
            return;
        }
        if self.groups.space.ask_at.is_some_and(|at| at > now) {
            return;
        }
        self.groups.space.ask_at = Some(now + ASK_EVERY);
        if self.id.0 == 0 {
            self.ask_for_space();
        }
        let in_trouble = self.shared.room.trouble().is_some();
        let most = if in_trouble { 1 } else { FILES_TO_GO_MAX };
        let holds = |slot: &Slot| match &slot.machine {
            Machine::Stream(stream) => stream.store().files_to_go() >= most,
            Machine::Meta(_) => false,
        };
        let wanted: Vec<GroupId> = self
            .groups
            .slots
            .values()
            .filter(|slot| holds(slot))
            .map(|slot| slot.group)
            .collect();
        for group in wanted {
            self.want_checkpoint(group);
        }
    }

    /// A checkpoint could not be written. A base may still be where a delta was not; after that there is a pause, and
    /// on a full disk the next try may take the reserve.
    pub(super) fn checkpoint_failed(&mut self, group: GroupId, was_base: bool, error: &IoError) {
        if was_base {
            self.groups.checkpoints_at = self.now.mono + CHECKPOINT_PAUSE;
        }
        let space = &mut self.groups.space;
        if *error == IoError::NoSpace
            && let Reserve::Kept(..) = space.reserve
            && let Reserve::Kept(file, len) = std::mem::take(&mut space.reserve)
        {
            space.reserve = Reserve::Offered(file, len);
            self.want_checkpoint(group);
        }
    }

    fn make_reserve(&mut self, total: u64) {
        let is_there = !matches!(self.groups.space.reserve, Reserve::None);
        if total == u64::MAX || is_there || self.shared.room.trouble().is_some() {
            return;
        }
        let Ok(file) = FilePath::new(&format!("reserve/{:04}", self.id.0)) else {
            return;
        };
        let (least, most) = RESERVE_BYTES;
        let len = (total / RESERVE_PART).clamp(least, most);
        self.groups.space.reserve = Reserve::Making(file.clone(), len);
        let op = IoOp::Create { file, len };
        let request = self.groups.files.request(super::checkpoint::FileJob::Reserve, op);
        self.out.io.push(IoJob {
            owner: IoOwner::Node,
            requests: vec![request],
            inline: false,
        });
    }

    /// The reserve is there, or could not be made.
    pub(super) fn reserve_made(&mut self, done: &IoDone) {
        let space = &mut self.groups.space;
        if let Reserve::Making(file, len) = std::mem::take(&mut space.reserve)
            && matches!(done.result, Ok(_) | Err(IoError::AlreadyExists))
        {
            space.reserve = Reserve::Kept(file, len);
        }
    }

    /// A checkpoint has let files go: a disk that was nearly full may have room again.
    pub(super) fn files_have_gone(&mut self) {
        if self.shared.room.is_low() {
            self.ask_for_space();
        }
    }

    fn ask_for_space(&mut self) {
        let space = &mut self.groups.space;
        space.let_in = 0;
        if std::mem::replace(&mut space.asked, true) {
            return;
        }
        let request = self
            .groups
            .files
            .request(super::checkpoint::FileJob::Space, IoOp::Space);
        self.out.io.push(IoJob {
            owner: IoOwner::Node,
            requests: vec![request],
            inline: false,
        });
    }

    /// The disk has said what it has left.
    pub(super) fn space_known(&mut self, done: &IoDone) {
        self.groups.space.asked = false;
        let Ok(IoOutput::Space { free, total }) = done.result else {
            return;
        };
        let mark = low_water(total);
        self.groups.space.ask_bytes = mark / 4;
        match self.shared.room.disk_has(free, total) {
            Some(true) => tracing::error!(
                "JetStream disk is nearly full: {free} bytes are free, publishes are refused below {mark}; \
                 purge or delete streams, or free space otherwise"
            ),
            Some(false) => {
                tracing::info!(
                    "JetStream disk has room again: {free} bytes are free; publishes are accepted"
                );
            }
            None => {}
        }
        self.make_reserve(total);
    }
}

/// What an account may store; `None` without a limit.
fn limit_of(account: &Account, storage: Storage) -> Option<u64> {
    let limits = account.jetstream.as_ref()?;
    u64::try_from(match storage {
        Storage::Memory => limits.max_memory,
        Storage::File => limits.max_store,
    })
    .ok()
}

impl Slot {
    /// Bytes of entries that are not applied yet.
    fn queued_bytes(&self) -> u64 {
        let sealed: usize = self.sealed.iter().map(|entry| entry.data.len()).sum();
        let proposed: usize = self.proposed.iter().map(|entry| entry.bytes).sum();
        (self.open.stream.len() + sealed + proposed) as u64
    }
}
