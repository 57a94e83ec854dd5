//! What a power loss takes, and what it took.

use crate::chance::Chance;
use std::fmt;

/// What becomes of that which was not synced.
#[derive(Debug)]
pub(crate) enum Loss {
    /// All of it is gone.
    All,
    /// Of names, the earlier changes may be kept and the later ones are gone; of data, each sector is kept, gone or torn.
    Some(Chance),
}

impl Loss {
    /// From words: `all`, or `some SEED`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        match words {
            ["all"] => Ok(Self::All),
            ["some", seed] => {
                let seed = seed.parse().map_err(|_| format!("{seed:?} is no seed"))?;
                Ok(Self::Some(Chance::new(seed)))
            }
            other => Err(format!("{:?} is neither `all` nor `some SEED`", other.join(" "))),
        }
    }
}

/// What a power loss took.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Files with changes of their content or length that were not synced.
    pub(crate) files: u64,
    /// Sectors that are as they were before.
    pub(crate) sectors: u64,
    /// Sectors that are partly new.
    pub(crate) torn: u64,
    /// Creations, removals and renames that have not happened.
    pub(crate) names: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            files,
            sectors,
            torn,
            names,
        } = self;
        write!(f, "files={files} sectors={sectors} torn={torn} names={names}")
    }
}
