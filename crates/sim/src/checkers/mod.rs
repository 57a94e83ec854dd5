//! The judges: each looks at the history or at the replicas and lists what breaks a promise.

mod acked;
mod copies;
mod deliveries;
mod linearizable;
mod liveness;
mod looks;
mod once;
mod order;
mod queue;
mod replicas;
mod times;

pub(crate) use copies::{CopyWatch, copied, is_emptied};
pub(crate) use liveness::silent;
pub(crate) use replicas::Replicas;

use crate::history::History;

/// Everything that can be judged once a run has ended.
pub(crate) fn judge(history: &History) -> Vec<String> {
    let mut found = history.problems.clone();
    found.extend(acked::check(history));
    found.extend(once::check(history));
    found.extend(order::check(history));
    found.extend(queue::check(history));
    found.extend(deliveries::check(history));
    found.extend(times::check(history));
    found.extend(looks::check(history));
    found.extend(copies::check(&history.copies));
    found.extend(linearizable::check(history));
    found
}

/// The first few of many, so that a report can be read.
fn few(mut all: Vec<String>) -> Vec<String> {
    let more = all.len().saturating_sub(5);
    if more > 0 {
        all.truncate(5);
        all.push(format!("... and {more} more"));
    }
    all
}
