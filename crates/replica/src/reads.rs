//! Linearizable reads, answered without the log (Raft thesis, section 6.4).
//!
//! A read may be served from a replica's state once that state contains everything that was committed anywhere when
//! the read arrived. The leader knows that index, provided it still leads. The library's own service is not used: it
//! lets identifiers of rounds be chosen by followers and used again, and then releases a fresh read by an old
//! acknowledgement.
//!
//! ```text
//!  follower:  waiting ──ReadAsk(life, counter)──> leader        leader:  waiting ──Confirm(round)──> voters
//!             asked  <──ReadGrant(index)────────                         round  <──Confirmed(round)──
//! ```
//!
//! * A batch is formed after the reads in it arrived, under an identifier that is never used again: a counter of this
//!   life of the replica, and the life itself. Each attempt is a new batch.
//! * A leader answers only once it has committed an entry of its term; until then reads wait.
//! * A frame of a voter in the leader's term, sent after the read arrived, shows that this voter had not voted in a
//!   later term by then. If such voters and the leader form a quorum, no later leader had been elected when the read
//!   arrived. A follower's own request is such a frame, therefore three voters need no round.
//! * With more voters, or two configurations at once, the ones that are missing are asked. An answer confirms the
//!   round that it answers and those before it; a batch of a follower is granted as soon as that follower and those
//!   that have confirmed its round are a quorum, whatever else the round waits for.
//! * At most [`IN_FLIGHT_MAX`] batches of a follower and rounds of a leader are out; what arrives meanwhile joins the
//!   next. So a read rarely waits for an answer that is not its own, and many reads share a frame.

use crate::frame::{Head, Kind};
use crate::member::Members;
use tidelock_base::{LogIndex, ReplicaId};

/// Ticks after which a follower asks again, under a new identifier.
const ASK_AGAIN_TICKS: u32 = 2;
/// Batches of a follower, or rounds of a leader, that are out at a time.
const IN_FLIGHT_MAX: usize = 2;

/// A read as the caller knows it; handed back with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadToken(pub u64);

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// It may be served by this replica once its state machine has applied this index.
    At(LogIndex),
    /// There is no leader to ask, or it changed: ask again later.
    Dropped,
}

/// The end of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// Which read.
    pub token: ReadToken,
    /// How it ended.
    pub outcome: ReadOutcome,
}

/// What the service needs to know of its group.
pub(crate) struct View<'a> {
    pub(crate) me: ReplicaId,
    pub(crate) term: u64,
    /// The known leader, 0 for none.
    pub(crate) leader: u64,
    pub(crate) leads: bool,
    pub(crate) committed_in_term: bool,
    pub(crate) commit: u64,
    pub(crate) members: &'a Members,
}

/// A batch of this replica at the leader.
struct Asked {
    counter: u64,
    term: u64,
    leader: u64,
    ticks: u32,
    tokens: Vec<ReadToken>,
}

/// A batch of another replica here.
struct Guest {
    from: u64,
    /// The request's identifier, sent back as it came.
    counter: u64,
    life: (u64, u64),
}

/// The leader asks the other voters whether it still leads.
struct Round {
    number: u64,
    term: u64,
    commit: u64,
    ticks: u32,
    /// This replica and whoever has answered.
    confirmed: Vec<ReplicaId>,
    tokens: Vec<ReadToken>,
    guests: Vec<Guest>,
}

/// The read service of one replica.
#[derive(Default)]
pub(crate) struct Reads {
    life: (u64, u64),
    /// Last identifier of a batch or round.
    last: u64,
    waiting: Vec<ReadToken>,
    guests: Vec<Guest>,
    asked: Vec<Asked>,
    /// In the order of their numbers.
    rounds: Vec<Round>,
    results: Vec<ReadResult>,
    frames: Vec<Head>,
    /// A committed (index, term) learned from an answer, which may be ahead of what appends have told.
    commit_hint: Option<(u64, u64)>,
}

impl Reads {
    pub(crate) fn new(life: u128) -> Self {
        let low = u64::try_from(life & u128::from(u64::MAX)).expect("masked to 64 bits");
        let high = u64::try_from(life >> 64).expect("shifted to 64 bits");
        Self {
            life: (low, high),
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, token: ReadToken) {
        self.waiting.push(token);
    }

    pub(crate) fn take_results(&mut self) -> Vec<ReadResult> {
        std::mem::take(&mut self.results)
    }

    pub(crate) fn take_frames(&mut self) -> Vec<Head> {
        std::mem::take(&mut self.frames)
    }

    pub(crate) const fn take_commit_hint(&mut self) -> Option<(u64, u64)> {
        self.commit_hint.take()
    }

    pub(crate) const fn keep_commit_hint(&mut self, hint: (u64, u64)) {
        self.commit_hint = Some(hint);
    }

    /// True if [`Reads::advance`] may have something to do.
    pub(crate) fn is_busy(&self) -> bool {
        let waits = !self.waiting.is_empty() || !self.guests.is_empty();
        waits || !self.asked.is_empty() || !self.rounds.is_empty()
    }

    /// Moves everything on as far as it can go; called once a turn, so that reads of a turn share a batch or round.
    pub(crate) fn advance(&mut self, view: &View<'_>) {
        if view.leads {
            self.advance_leader(view);
        } else {
            self.advance_follower(view);
        }
    }

    fn advance_leader(&mut self, view: &View<'_>) {
        for asked in self.asked.drain(..) {
            self.waiting.extend(asked.tokens);
        }
        self.drop_rounds(|round| round.term != view.term);
        if !view.committed_in_term {
            return;
        }
        let commit = view.commit;
        if view.members.is_quorum(&[view.me]) {
            // Nobody else is left to confirm.
            for round in std::mem::take(&mut self.rounds) {
                self.finish(round);
            }
            self.results
                .extend(self.waiting.drain(..).map(|token| at(token, commit)));
        }
        let frames = &mut self.frames;
        self.guests.retain(|guest| {
            let confirmed = view.members.is_quorum(&[view.me, ReplicaId(guest.from)]);
            if confirmed {
                frames.push(guest.answer(Kind::ReadGrant, commit));
            }
            !confirmed
        });
        let wanted = !(self.waiting.is_empty() && self.guests.is_empty());
        if wanted && self.rounds.len() < IN_FLIGHT_MAX {
            self.start_round(view);
        }
    }

    fn start_round(&mut self, view: &View<'_>) {
        self.last += 1;
        let round = Round {
            number: self.last,
            term: view.term,
            commit: view.commit,
            ticks: 0,
            confirmed: vec![view.me],
            tokens: std::mem::take(&mut self.waiting),
            guests: std::mem::take(&mut self.guests),
        };
        round.ask(view.members, &mut self.frames);
        self.rounds.push(round);
    }

    fn advance_follower(&mut self, view: &View<'_>) {
        self.drop_rounds(|_| true);
        self.guests.clear();
        let lost = |asked: &mut Asked| asked.term != view.term || asked.leader != view.leader;
        for asked in self.asked.extract_if(.., lost) {
            self.results.extend(asked.tokens.into_iter().map(dropped));
        }
        if view.leader == 0 {
            self.results.extend(self.waiting.drain(..).map(dropped));
            return;
        }
        for asked in self.asked.extract_if(.., |asked| asked.ticks >= ASK_AGAIN_TICKS) {
            self.waiting.extend(asked.tokens);
        }
        if self.asked.len() < IN_FLIGHT_MAX && !self.waiting.is_empty() {
            self.last += 1;
            let mut head = Head::new(Kind::ReadAsk, view.leader);
            (head.index, head.log_term, head.commit) = (self.last, self.life.0, self.life.1);
            self.frames.push(head);
            self.asked.push(Asked {
                counter: self.last,
                term: view.term,
                leader: view.leader,
                ticks: 0,
                tokens: std::mem::take(&mut self.waiting),
            });
        }
    }

    fn drop_rounds(&mut self, which: impl Fn(&Round) -> bool) {
        for round in self.rounds.extract_if(.., |round| which(round)) {
            self.results.extend(round.tokens.into_iter().map(dropped));
        }
    }

    /// Counts a tick: answers that are late are asked for again.
    pub(crate) fn tick(&mut self, members: &Members) {
        for asked in &mut self.asked {
            asked.ticks += 1;
        }
        for round in &mut self.rounds {
            round.ticks += 1;
            // A later answer confirms the same round: it too was sent after the round began.
            if round.ticks > 1 {
                round.ask(members, &mut self.frames);
            }
        }
    }

    /// Takes a frame of the service.
    pub(crate) fn step(&mut self, view: &View<'_>, head: &Head) {
        match head.kind {
            Kind::ReadAsk => self.guest(view, head),
            Kind::ReadGrant | Kind::ReadRefuse => self.answered(head),
            Kind::Confirm if head.term == view.term => {
                let mut answer = Head::new(Kind::Confirmed, head.from);
                answer.index = head.index;
                self.frames.push(answer);
            }
            Kind::Confirmed if view.leads && head.term == view.term => self.confirmed(view, head),
            Kind::Confirm
            | Kind::Confirmed
            | Kind::Append
            | Kind::AppendAnswer
            | Kind::Vote
            | Kind::VoteAnswer
            | Kind::PreVote
            | Kind::PreVoteAnswer
            | Kind::Heartbeat
            | Kind::HeartbeatAnswer
            | Kind::Snapshot
            | Kind::TimeoutNow => {}
        }
    }

    fn guest(&mut self, view: &View<'_>, head: &Head) {
        let guest = Guest {
            from: head.from,
            counter: head.index,
            life: (head.log_term, head.commit),
        };
        if !view.leads || head.term != view.term {
            self.frames.push(guest.answer(Kind::ReadRefuse, 0));
            return;
        }
        // No more are out, so an older one has been given up.
        let of_this = |other: &Guest| other.from == guest.from;
        if self.guests.iter().filter(|other| of_this(other)).count() >= IN_FLIGHT_MAX
            && let Some(oldest) = self.guests.iter().position(of_this)
        {
            self.guests.remove(oldest);
        }
        self.guests.push(guest);
    }

    fn answered(&mut self, head: &Head) {
        let mine = (head.log_term, head.commit) == self.life;
        let answers = |asked: &Asked| {
            let in_term = head.kind == Kind::ReadRefuse || asked.term == head.term;
            mine && asked.counter == head.index && in_term && asked.leader == head.from
        };
        let Some(place) = self.asked.iter().position(answers) else {
            return;
        };
        let asked = self.asked.remove(place);
        if head.kind == Kind::ReadGrant {
            self.results
                .extend(asked.tokens.into_iter().map(|token| at(token, head.aux)));
            self.commit_hint = Some((head.aux, head.term));
        } else {
            self.results.extend(asked.tokens.into_iter().map(dropped));
        }
    }

    fn confirmed(&mut self, view: &View<'_>, head: &Head) {
        let voter = ReplicaId(head.from);
        // The frame was sent after the round that it answers began, and so after those before it did.
        let answers = |round: &Round| round.number <= head.index && round.term == view.term;
        let mut finished = Vec::new();
        for mut round in std::mem::take(&mut self.rounds) {
            if answers(&round) {
                if !round.confirmed.contains(&voter) {
                    round.confirmed.push(voter);
                }
                round.answer_guests(view.members, &mut self.frames);
            }
            let done = round.is_empty() || view.members.is_quorum(&round.confirmed);
            if done { &mut finished } else { &mut self.rounds }.push(round);
        }
        for round in finished {
            self.finish(round);
        }
    }

    fn finish(&mut self, round: Round) {
        let commit = round.commit;
        self.results
            .extend(round.tokens.into_iter().map(|token| at(token, commit)));
        self.frames.extend(
            round
                .guests
                .iter()
                .map(|guest| guest.answer(Kind::ReadGrant, commit)),
        );
    }
}

impl Round {
    /// Nobody waits for it.
    const fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.guests.is_empty()
    }

    /// Asks the voters that have not confirmed and whose word is of use: a batch's own sender need not be asked for it.
    fn ask(&self, members: &Members, frames: &mut Vec<Head>) {
        for voter in members.all_voters() {
            let of_use =
                || !self.tokens.is_empty() || self.guests.iter().any(|guest| guest.from != voter.value());
            if !self.confirmed.contains(&voter) && of_use() {
                let mut head = Head::new(Kind::Confirm, voter.value());
                head.index = self.number;
                frames.push(head);
            }
        }
    }

    /// Grants the batches that a quorum has confirmed, those who sent them included.
    fn answer_guests(&mut self, members: &Members, frames: &mut Vec<Head>) {
        let (confirmed, commit) = (&mut self.confirmed, self.commit);
        self.guests.retain(|guest| {
            confirmed.push(ReplicaId(guest.from));
            let granted = members.is_quorum(confirmed);
            confirmed.pop();
            if granted {
                frames.push(guest.answer(Kind::ReadGrant, commit));
            }
            !granted
        });
    }
}

impl Guest {
    const fn answer(&self, kind: Kind, index: u64) -> Head {
        let mut head = Head::new(kind, self.from);
        head.index = self.counter;
        head.log_term = self.life.0;
        head.commit = self.life.1;
        head.aux = index;
        head
    }
}

const fn at(token: ReadToken, index: u64) -> ReadResult {
    ReadResult {
        token,
        outcome: ReadOutcome::At(LogIndex(index)),
    }
}

const fn dropped(token: ReadToken) -> ReadResult {
    ReadResult {
        token,
        outcome: ReadOutcome::Dropped,
    }
}
