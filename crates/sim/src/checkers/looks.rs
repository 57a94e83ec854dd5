//! A read sees what its connection has published before it, whichever replica serves it (DESIGN section 4, "Order per
//! connection"; "read your writes" of Terry, Demers, Petersen, Spreitzer, Theimer, Welch, "Session Guarantees for Weakly
//! Consistent Replicated Data", PDIS 1994).

use super::few;
use crate::history::{History, Outcome};

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    for look in &history.looks {
        let publish = history.publishes.get(&look.behind);
        if let Some(Outcome::Acked(seq)) = publish.map(|publish| &publish.outcome)
            && look.found < *seq
        {
            found.push(format!(
                "{} was stored as {seq}, a read behind it on its connection shows {}",
                look.behind, look.found
            ));
        }
    }
    few(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientId;
    use crate::history::{Look, Publish};

    #[test]
    fn a_read_that_misses_the_publish_before_it_is_found() {
        let mut history = History::default();
        let publish = |outcome| Publish {
            stream: "EV",
            client: ClientId(1),
            number: 1,
            outcome,
        };
        history.publishes.insert("a".into(), publish(Outcome::Acked(5)));
        history.publishes.insert("b".into(), publish(Outcome::Unknown));
        let look = |behind: &str, found| Look {
            behind: behind.into(),
            found,
        };
        history.looks = vec![look("a", 5), look("a", 6), look("b", 0)];
        assert_eq!(check(&history).len(), 0);
        history.looks = vec![look("a", 4)];
        assert_eq!(check(&history).len(), 1);
    }
}
