//! Windows of forward numbers: each publish that was forwarded is judged once, however often it is logged.
//!
//! A server numbers the publishes it forwards to a stream, densely, per worker and per start (RIFL; Raft thesis,
//! section 6.3). The stream's state keeps, per window, the last number judged and the results that the sender may
//! still ask for. After a leader change the sender sends everything unresolved once more, in order; what was judged
//! already gets its stored result.
//!
//! ```text
//!   number:   1 ........ low | low+1 ........ last | last+1 | last+2 ....
//!             forgotten      | known: in `results` | next   | a gap: ignored
//! ```
//! The low-water mark comes with each run: the sender needs no result up to there, inclusive. It may lie above `last`
//! when the sender has given up on publishes that never arrived; they will never be judged, and the window moves
//! over them, so that what follows is dense again. For the same reason a window that has been forgotten starts anew
//! at the sender's low-water mark.
//!
//! **What the sender owes**: at most [`WINDOW_RESULTS_MAX`] numbers above its low-water mark, and no number kept
//! unresolved for longer than half of [`WINDOW_IDLE_NS`].

use crate::codec::{Malformed, Put, Reader};
use crate::command::WindowKey;
use crate::digest::Running;
use std::collections::{BTreeMap, VecDeque};
use tidelock_base::{ApiError, ApiErrorCode, BootId, StreamSeq, Wall, WorkerId};

/// Results kept per window at most; a publish beyond is ignored like a gap and sent again by its server.
pub const WINDOW_RESULTS_MAX: u64 = 65_536;
/// A window that has not been used for this long is forgotten: its server is gone, or owes nothing.
pub const WINDOW_IDLE_NS: i64 = 3_600 * 1_000_000_000;
/// One entry moves the windows' clock by no more than this, so that a jump of the log's time forgets nothing.
const CLOCK_STEP_NS_MAX: i64 = 60 * 1_000_000_000;

/// What became of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PubOutcome {
    /// Stored under this sequence.
    Stored {
        /// The sequence.
        seq: StreamSeq,
    },
    /// Its `Nats-Msg-Id` was known; the message with it has (or had) this sequence.
    Duplicate {
        /// The sequence.
        seq: StreamSeq,
    },
    /// Nobody is interested in it (interest retention): it took this sequence and was not stored.
    Skipped {
        /// The sequence.
        seq: StreamSeq,
    },
    /// Not stored.
    Refused(Refusal),
}

/// Why a publish was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An error without variable parts.
    Code(ApiErrorCode),
    /// 10071; the true last sequence, of the stream or of the subject.
    WrongLastSeq(StreamSeq),
    /// 10070; the id of the last message.
    WrongLastMsgId(Box<[u8]>),
    /// 10111 for a value that is none.
    RollupValue(Box<[u8]>),
    /// 10111: not on this stream.
    RollupNotPermitted,
    /// 10077: discard new at `max_msgs`.
    MaxMsgs,
    /// 10077: discard new at `max_bytes`.
    MaxBytes,
    /// 10077: discard new at `max_msgs_per_subject`.
    MaxMsgsPerSubject,
}

impl Refusal {
    /// Which error of the API it is.
    #[must_use]
    pub const fn code(&self) -> ApiErrorCode {
        match self {
            Self::Code(code) => *code,
            Self::WrongLastSeq(_) => ApiErrorCode::StreamWrongLastSequence,
            Self::WrongLastMsgId(_) => ApiErrorCode::StreamWrongLastMsgID,
            Self::RollupValue(_) | Self::RollupNotPermitted => ApiErrorCode::StreamRollupFailedF,
            Self::MaxMsgs | Self::MaxBytes | Self::MaxMsgsPerSubject => ApiErrorCode::StreamStoreFailedF,
        }
    }

    /// The error of the API, for the acknowledgement.
    #[must_use]
    pub fn to_api_error(&self) -> ApiError {
        let text = |code, text: &'static str| ApiError::text(code, text);
        match self {
            Self::Code(code) => ApiError::new(*code),
            Self::WrongLastSeq(seq) => {
                ApiError::with(ApiErrorCode::StreamWrongLastSequence, &[&seq.to_string()])
            }
            Self::WrongLastMsgId(id) => ApiError::with(
                ApiErrorCode::StreamWrongLastMsgID,
                &[&String::from_utf8_lossy(id)],
            ),
            Self::RollupValue(value) => ApiError::text(
                ApiErrorCode::StreamRollupFailedF,
                format!("rollup value invalid: {:?}", String::from_utf8_lossy(value)),
            ),
            Self::RollupNotPermitted => text(ApiErrorCode::StreamRollupFailedF, "rollup not permitted"),
            Self::MaxMsgs => text(ApiErrorCode::StreamStoreFailedF, "maximum messages exceeded"),
            Self::MaxBytes => text(ApiErrorCode::StreamStoreFailedF, "maximum bytes exceeded"),
            Self::MaxMsgsPerSubject => text(
                ApiErrorCode::StreamStoreFailedF,
                "maximum messages per subject exceeded",
            ),
        }
    }
}

/// Where a number stands in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged<'a> {
    /// It is the next one: judge it, then [`Windows::record`] the outcome.
    Next,
    /// It was judged; this is its result.
    Known(&'a PubOutcome),
    /// The sender has said that it needs no result, or an earlier number is missing: do nothing.
    Ignored,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Window {
    low: u64,
    /// Results of `low + 1 ..= low + results.len()`; the last of them is the last number judged.
    results: VecDeque<PubOutcome>,
    /// The windows' clock when it was used last.
    used: i64,
}

impl Window {
    fn last(&self) -> u64 {
        self.low + self.results.len() as u64
    }

    fn raise_low(&mut self, low: u64) {
        let done = low.saturating_sub(self.low);
        let drop = usize::try_from(done)
            .unwrap_or(usize::MAX)
            .min(self.results.len());
        self.results.drain(..drop);
        self.low = self.low.max(low);
    }
}

/// All windows of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    windows: BTreeMap<WindowKey, Window>,
    /// The stamp of the last entry, and a clock that follows the stamps in bounded steps.
    stamp: Wall,
    clock: i64,
}

impl Windows {
    /// The log's time has come to `stamp`; windows that were not used for long are forgotten.
    pub fn advance(&mut self, stamp: Wall) {
        let step = stamp.0.saturating_sub(self.stamp.0).clamp(0, CLOCK_STEP_NS_MAX);
        self.stamp = self.stamp.max(stamp);
        self.clock = self.clock.saturating_add(step);
        let oldest = self.clock.saturating_sub(WINDOW_IDLE_NS);
        if self.windows.values().any(|window| window.used < oldest) {
            self.windows.retain(|_, window| window.used >= oldest);
        }
    }

    /// A run of this window begins; its sender needs no result up to `low_water`.
    pub fn begin_run(&mut self, key: WindowKey, low_water: u64) {
        let clock = self.clock;
        let window = self.windows.entry(key).or_default();
        window.used = clock;
        window.raise_low(low_water);
    }

    /// Where `number` stands.
    #[must_use]
    pub fn judge(&self, key: WindowKey, number: u64) -> Judged<'_> {
        let Some(window) = self.windows.get(&key) else {
            return Judged::Ignored;
        };
        let last = window.last();
        if number == last.saturating_add(1) {
            let full = window.results.len() as u64 >= WINDOW_RESULTS_MAX;
            return if full { Judged::Ignored } else { Judged::Next };
        }
        number
            .checked_sub(window.low.saturating_add(1))
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| window.results.get(at))
            .map_or(Judged::Ignored, Judged::Known)
    }

    /// Keeps the result of the number that [`Judged::Next`] was said of.
    pub fn record(&mut self, key: WindowKey, outcome: PubOutcome) {
        if let Some(window) = self.windows.get_mut(&key) {
            window.results.push_back(outcome);
        }
    }

    /// Last number judged and low-water mark of a window, if it is known.
    #[must_use]
    pub fn position(&self, key: WindowKey) -> Option<(u64, u64)> {
        self.windows.get(&key).map(|window| (window.last(), window.low))
    }

    /// Forgets a window.
    pub fn close(&mut self, key: WindowKey) {
        self.windows.remove(&key);
    }

    /// How many windows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    pub(crate) fn digest(&self, digest: &mut Running) {
        for (key, window) in &self.windows {
            digest.mix_bytes(&key.boot.0.to_le_bytes());
            digest.mix(u64::from(key.worker.0));
            digest.mix(window.low);
            digest.mix(window.last());
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_i64(self.stamp.0);
        out.put_i64(self.clock);
        out.put_len(self.windows.len());
        for (key, window) in &self.windows {
            out.put_u128(key.boot.0);
            out.put_u16(key.worker.0);
            out.put_u64(window.low);
            out.put_i64(window.used);
            out.put_len(window.results.len());
            for outcome in &window.results {
                encode_outcome(out, outcome);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut windows = Self {
            stamp: Wall(reader.i64("windows: stamp")?),
            clock: reader.i64("windows: clock")?,
            ..Self::default()
        };
        for _ in 0..reader.count(38, "windows")? {
            let key = WindowKey {
                boot: BootId(reader.u128("window: boot")?),
                worker: WorkerId(reader.u16("window: worker")?),
            };
            let mut window = Window {
                low: reader.u64("window: low")?,
                used: reader.i64("window: used")?,
                ..Window::default()
            };
            for _ in 0..reader.count(9, "window: results")? {
                window.results.push_back(decode_outcome(reader)?);
            }
            if window.low.checked_add(window.results.len() as u64).is_none() {
                return Err(Malformed("window: low"));
            }
            windows.windows.insert(key, window);
        }
        Ok(windows)
    }
}

/// Shape: tag u8, number u64 (a sequence or an error code), then for two of the tags sized bytes.
fn encode_outcome(out: &mut Vec<u8>, outcome: &PubOutcome) {
    let (tag, number, bytes): (u8, u64, Option<&[u8]>) = match outcome {
        PubOutcome::Stored { seq } => (0, seq.0, None),
        PubOutcome::Duplicate { seq } => (1, seq.0, None),
        PubOutcome::Skipped { seq } => (2, seq.0, None),
        PubOutcome::Refused(refusal) => match refusal {
            Refusal::Code(code) => (3, u64::from(code.err_code()), None),
            Refusal::WrongLastSeq(seq) => (4, seq.0, None),
            Refusal::WrongLastMsgId(id) => (5, 0, Some(id)),
            Refusal::RollupValue(value) => (6, 0, Some(value)),
            Refusal::RollupNotPermitted => (7, 0, None),
            Refusal::MaxMsgs => (8, 0, None),
            Refusal::MaxBytes => (9, 0, None),
            Refusal::MaxMsgsPerSubject => (10, 0, None),
        },
    };
    out.put_u8(tag);
    out.put_u64(number);
    if let Some(bytes) = bytes {
        out.put_sized(bytes);
    }
}

fn decode_outcome(reader: &mut Reader<'_>) -> Result<PubOutcome, Malformed> {
    let tag = reader.u8("outcome")?;
    let number = reader.u64("outcome")?;
    let seq = StreamSeq(number);
    Ok(PubOutcome::Refused(match tag {
        0 => return Ok(PubOutcome::Stored { seq }),
        1 => return Ok(PubOutcome::Duplicate { seq }),
        2 => return Ok(PubOutcome::Skipped { seq }),
        3 => Refusal::Code(
            u16::try_from(number)
                .ok()
                .and_then(tidelock_base::api_error_by_code)
                .ok_or(Malformed("outcome: error code"))?,
        ),
        4 => Refusal::WrongLastSeq(seq),
        5 => Refusal::WrongLastMsgId(reader.sized("outcome: id")?.into()),
        6 => Refusal::RollupValue(reader.sized("outcome: rollup")?.into()),
        7 => Refusal::RollupNotPermitted,
        8 => Refusal::MaxMsgs,
        9 => Refusal::MaxBytes,
        10 => Refusal::MaxMsgsPerSubject,
        _ => return Err(Malformed("outcome")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: WindowKey = WindowKey {
        boot: BootId(7),
        worker: WorkerId(1),
    };

    fn stored(seq: u64) -> PubOutcome {
        PubOutcome::Stored { seq: StreamSeq(seq) }
    }

    /// Runs `first..first+count`; returns what was judged anew.
    fn run(windows: &mut Windows, first: u64, count: u64, low: u64) -> Vec<u64> {
        windows.begin_run(KEY, low);
        let mut judged = Vec::new();
        for number in first..first + count {
            if windows.judge(KEY, number) == Judged::Next {
                judged.push(number);
                windows.record(KEY, stored(number * 10));
            }
        }
        judged
    }

    #[test]
    fn known_numbers_get_their_result_and_gaps_are_ignored() {
        let mut windows = Windows::default();
        assert_eq!(run(&mut windows, 1, 3, 0), [1, 2, 3]);
        assert_eq!(windows.judge(KEY, 2), Judged::Known(&stored(20)));
        assert_eq!(run(&mut windows, 5, 1, 0), [0; 0]);
        assert_eq!(run(&mut windows, 3, 3, 2), [4, 5]);
        assert_eq!(windows.judge(KEY, 2), Judged::Ignored);
        assert_eq!(windows.judge(KEY, 3), Judged::Known(&stored(30)));
        assert_eq!(windows.position(KEY), Some((5, 2)));
    }

    #[test]
    fn a_sender_that_gave_up_goes_on_and_what_it_gave_up_stays_unjudged() {
        let mut windows = Windows::default();
        assert_eq!(run(&mut windows, 1, 1, 0), [1]);
        assert_eq!(run(&mut windows, 5, 1, 4), [5]);
        assert_eq!(run(&mut windows, 2, 3, 1), [0; 0]);
        assert_eq!(windows.judge(KEY, 3), Judged::Ignored);
    }

    #[test]
    fn an_idle_window_is_forgotten_by_time_but_not_by_a_jump_and_may_come_back() {
        let mut windows = Windows::default();
        assert_eq!(run(&mut windows, 1, 2, 0), [1, 2]);
        windows.advance(Wall(WINDOW_IDLE_NS * 100));
        assert_eq!(windows.len(), 1);
        for step in 0..70 {
            windows.advance(Wall(WINDOW_IDLE_NS * 100 + step * CLOCK_STEP_NS_MAX));
        }
        assert_eq!(windows.len(), 0);
        assert_eq!(run(&mut windows, 4, 1, 2), [0; 0]);
        assert_eq!(run(&mut windows, 3, 1, 2), [3]);
    }

    #[test]
    fn results_are_bounded() {
        let mut windows = Windows::default();
        assert_eq!(
            run(&mut windows, 1, WINDOW_RESULTS_MAX + 5, 0).len() as u64,
            WINDOW_RESULTS_MAX
        );
        assert_eq!(
            run(&mut windows, WINDOW_RESULTS_MAX + 1, 1, 1),
            [WINDOW_RESULTS_MAX + 1]
        );
    }

    proptest! {
        /// Whatever is sent again, in whatever pieces: each number is judged once at most, and in order.
        #[test]
        fn each_number_is_judged_once(runs in prop::collection::vec((1u64..40, 0u64..8, 0u64..40), 1..60)) {
            let mut windows = Windows::default();
            let mut judged = Vec::new();
            for (first, count, low) in runs {
                judged.extend(run(&mut windows, first, count, low));
                let mut bytes = Vec::new();
                windows.encode(&mut bytes);
                let again = Windows::decode(&mut Reader::new(&bytes)).unwrap();
                prop_assert_eq!(&again, &windows);
            }
            prop_assert!(judged.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", judged);
        }
    }
}
