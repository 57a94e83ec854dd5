//! The connections that are read again in the next turn.

use tidelock_node::ConnKey;

/// Each connection at most once, however often it is told that there is more to read: a turn reads a bounded part of
/// each.
#[derive(Debug, Default)]
pub(super) struct ReadAgain {
    keys: Vec<ConnKey>,
    /// By index: which connection is listed.
    listed: Vec<Option<ConnKey>>,
}

impl ReadAgain {
    pub(super) fn add(&mut self, key: ConnKey) {
        let index = key.index as usize;
        if self.listed.len() <= index {
            self.listed.resize(index + 1, None);
        }
        if let Some(listed) = self.listed.get_mut(index)
            && listed.replace(key) != Some(key)
        {
            self.keys.push(key);
        }
    }

    /// Takes the connections of this turn. Each stays listed until it is [begun](Self::begin).
    pub(super) fn take(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.keys)
    }

    /// Whether the connection is read in this turn anyway.
    pub(super) fn contains(&self, key: ConnKey) -> bool {
        self.listed.get(key.index as usize) == Some(&Some(key))
    }

    /// The connection is being read: it may be listed for the next turn.
    pub(super) fn begin(&mut self, key: ConnKey) {
        if let Some(listed) = self.listed.get_mut(key.index as usize) {
            listed.take_if(|listed| *listed == key);
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn key(index: u32, generation: u32) -> ConnKey {
        ConnKey { index, generation }
    }

    #[test]
    fn a_connection_is_read_once_a_turn() {
        let mut again = ReadAgain::default();
        again.add(key(3, 1));
        again.add(key(0, 1));
        again.add(key(3, 1));
        assert!(again.contains(key(3, 1)) && !again.contains(key(1, 1)));
        let due = again.take();
        assert_eq!(due, [key(3, 1), key(0, 1)]);
        // What is told of it before it is read adds nothing: it is read in this turn.
        again.add(key(3, 1));
        assert!(again.is_empty());
        for key in due {
            again.begin(key);
            again.add(key);
        }
        assert_eq!(again.take().len(), 2);
    }

    #[test]
    fn the_next_connection_in_a_place_is_another_one() {
        let mut again = ReadAgain::default();
        again.add(key(2, 1));
        assert!(!again.contains(key(2, 2)));
        again.add(key(2, 2));
        assert_eq!(again.take(), [key(2, 1), key(2, 2)]);
        again.begin(key(2, 1));
        assert!(again.contains(key(2, 2)));
    }
}
