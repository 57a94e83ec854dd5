//! Once nothing is broken any more, everyone is served again within a bound (the GST of Dwork, Lynch, Stockmeyer,
//! "Consensus in the Presence of Partial Synchrony", JACM 1988).

use crate::history::History;
use tidelock_base::Mono;

/// Actors that expect answers and have got none since then.
pub(crate) fn silent(history: &History, expecting: &[usize], since: Mono) -> Vec<usize> {
    expecting
        .iter()
        .copied()
        .filter(|actor| history.answered.get(actor).is_none_or(|at| *at <= since))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_before_the_healing_do_not_count() {
        let mut history = History::default();
        history.answered.extend([(1, Mono(5)), (2, Mono(15))]);
        assert_eq!(silent(&history, &[1, 2, 3], Mono(10)), [1, 3]);
    }
}
