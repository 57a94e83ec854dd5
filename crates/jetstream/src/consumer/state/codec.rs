//! A consumer's state as bytes, for checkpoints and digests. Equal states have equal bytes, whatever way led to them.
//!
//! Little-endian, no padding; the configuration is kept beside it by the stream:
//! ```text
//! version u8 (2) | id u64 | epoch u32 | reset_epoch u32 | created i64 | delivered stream u64, consumer u64
//! | last_delivered i64 | last_ack i64 | paused_until i64 | activity u64
//! | count u32 | (seq u64 | deliver_seq u64 | deadline i64, 0 if queued | deliveries u32 | queued u8) x count
//! | count u32 | exhausted seq u64 x count
//! | held u8 | if held: floor stream u64, consumer u64
//! ```
//! Sequences rise within each list. Version 1 ends before `held`.

use super::{ConsumerState, Pending, Position};
use crate::Malformed;
use crate::codec::{Put, Reader};
use crate::config::ConsumerConfig;
use crate::digest::Running;
use roaring::RoaringTreemap;
use tidelock_base::{ConsumerId, DeliverSeq, StreamSeq, Wall};

const VERSION: u8 = 2;
const VERSION_WITHOUT_HELD: u8 = 1;
/// Bytes of one pending message.
const ENTRY_BYTES: usize = 29;

impl ConsumerState {
    /// Appends the state, without the configuration.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_u64(self.id.0);
        out.put_u32(self.epoch);
        out.put_u32(self.reset_epoch);
        out.put_i64(self.created.0);
        out.put_u64(self.delivered.stream_seq.0);
        out.put_u64(self.delivered.deliver_seq.0);
        out.put_i64(self.last_delivered.0);
        out.put_i64(self.last_ack.0);
        out.put_i64(self.paused_until.0);
        out.put_u64(self.activity);
        out.put_len(self.pending.len());
        for entry in self.pending.iter() {
            out.put_u64(entry.seq.0);
            out.put_u64(entry.deliver_seq.0);
            out.put_i64(if entry.is_queued() { 0 } else { entry.deadline.0 });
            out.put_u32(entry.count);
            out.put_u8(u8::from(entry.is_queued()));
        }
        out.put_len(usize::try_from(self.exhausted.len()).unwrap_or(usize::MAX));
        for seq in &self.exhausted {
            out.put_u64(seq);
        }
        out.put_u8(u8::from(self.held_floor.is_some()));
        if let Some(floor) = self.held_floor {
            out.put_u64(floor.stream_seq.0);
            out.put_u64(floor.deliver_seq.0);
        }
    }

    /// Reads what [`Self::encode`] wrote, all of it.
    ///
    /// # Errors
    /// The bytes are something else.
    pub fn decode(bytes: &[u8], config: ConsumerConfig) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let version = from.u8("consumer version")?;
        if !(VERSION_WITHOUT_HELD..=VERSION).contains(&version) {
            return Err(Malformed("consumer version"));
        }
        let mut state = Self::new(
            ConsumerId(from.u64("consumer id")?),
            from.u32("consumer epoch")?,
            config,
            Wall::ZERO,
            StreamSeq(1),
        );
        state.reset_epoch = from.u32("consumer reset epoch")?;
        state.created = Wall(from.i64("consumer created")?);
        state.delivered = Position {
            stream_seq: StreamSeq(from.u64("consumer delivered")?),
            deliver_seq: DeliverSeq(from.u64("consumer delivered")?),
        };
        state.last_delivered = Wall(from.i64("consumer last delivered")?);
        state.last_ack = Wall(from.i64("consumer last ack")?);
        state.paused_until = Wall(from.i64("consumer pause")?);
        state.activity = from.u64("consumer activity")?;
        state.pending = decode_pending(&mut from, state.delivered)?;
        state.exhausted = decode_exhausted(&mut from, state.delivered)?;
        if version > VERSION_WITHOUT_HELD {
            state.held_floor = decode_held(&mut from, state.done_floor())?;
        }
        from.end("consumer end")?;
        Ok(state)
    }

    /// Takes the state into a running hash.
    pub fn digest(&self, hasher: &mut Running) {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        hasher.mix_bytes(&bytes);
    }
}

fn decode_pending(from: &mut Reader<'_>, delivered: Position) -> Result<Pending, Malformed> {
    const WHAT: &str = "consumer pending";
    let mut pending = Pending::default();
    let mut last = StreamSeq(0);
    for _ in 0..from.count(ENTRY_BYTES, WHAT)? {
        let seq = StreamSeq(from.u64(WHAT)?);
        let deliver_seq = DeliverSeq(from.u64(WHAT)?);
        let deadline = Wall(from.i64(WHAT)?);
        let count = from.u32(WHAT)?;
        let queued = match from.u8(WHAT)? {
            0 => false,
            1 => true,
            _ => return Err(Malformed(WHAT)),
        };
        if seq <= last || seq > delivered.stream_seq || count == 0 {
            return Err(Malformed(WHAT));
        }
        last = seq;
        pending.restore(seq, deliver_seq, deadline, count, queued);
    }
    Ok(pending)
}

fn decode_exhausted(from: &mut Reader<'_>, delivered: Position) -> Result<RoaringTreemap, Malformed> {
    const WHAT: &str = "consumer exhausted";
    let mut exhausted = RoaringTreemap::new();
    for _ in 0..from.count(8, WHAT)? {
        let seq = from.u64(WHAT)?;
        let rising = exhausted.max().is_none_or(|last| last < seq);
        if !rising || seq > delivered.stream_seq.0 {
            return Err(Malformed(WHAT));
        }
        exhausted.insert(seq);
    }
    Ok(exhausted)
}

fn decode_held(from: &mut Reader<'_>, most: Position) -> Result<Option<Position>, Malformed> {
    const WHAT: &str = "consumer floor";
    match from.u8(WHAT)? {
        0 => Ok(None),
        1 => {
            let floor = Position {
                stream_seq: StreamSeq(from.u64(WHAT)?),
                deliver_seq: DeliverSeq(from.u64(WHAT)?),
            };
            let fits = floor.stream_seq <= most.stream_seq && floor.deliver_seq <= most.deliver_seq;
            fits.then_some(Some(floor)).ok_or(Malformed(WHAT))
        }
        _ => Err(Malformed(WHAT)),
    }
}
