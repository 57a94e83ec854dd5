//! Names in folders: those that are durable, those that processes see, and the changes between the two, in their order.

use crate::loss::Loss;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};

/// Number of a file or folder.
pub(crate) type Ino = u64;
/// The folder that is mounted.
pub(crate) const ROOT: Ino = 1;

/// One name of one folder becomes that of something, or of nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The folder.
    pub(crate) folder: Ino,
    /// The name in it.
    pub(crate) name: OsString,
    /// What has the name from now on.
    pub(crate) to: Option<Ino>,
}

/// The names of a folder.
#[derive(Debug, Default)]
struct Folder {
    durable: BTreeMap<OsString, Ino>,
    seen: BTreeMap<OsString, Ino>,
}

/// Whose names the sync of a folder makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Above {
    /// Those in it and no others, as POSIX has it: a new folder needs a sync of the one that it is in, too.
    Own,
    /// Also its own name and those of the folders above it, where they are new. File systems with a journal do that.
    Follows,
}

/// All folders.
#[derive(Debug)]
pub(crate) struct Names {
    folders: HashMap<Ino, Folder>,
    /// What is not durable yet: changes that happen together or not at all, the oldest first.
    pending: Vec<Vec<Edit>>,
    above: Above,
}

impl Names {
    /// The root alone, without names.
    pub(crate) fn new(above: Above) -> Self {
        let folders = HashMap::from([(ROOT, Folder::default())]);
        Self {
            folders,
            pending: Vec::new(),
            above,
        }
    }

    /// A folder without names; it has none itself yet.
    pub(crate) fn add_folder(&mut self, ino: Ino) {
        self.folders.insert(ino, Folder::default());
    }

    /// Whether this is a folder.
    pub(crate) fn is_folder(&self, ino: Ino) -> bool {
        self.folders.contains_key(&ino)
    }

    /// What has a name.
    pub(crate) fn find(&self, folder: Ino, name: &OsStr) -> Option<Ino> {
        self.folders.get(&folder)?.seen.get(name).copied()
    }

    /// All names of a folder.
    pub(crate) fn list(&self, folder: Ino) -> impl Iterator<Item = (&OsString, Ino)> {
        let seen = self.folders.get(&folder).map(|f| &f.seen);
        seen.into_iter().flatten().map(|(name, ino)| (name, *ino))
    }

    /// Makes changes that processes see at once, and that are durable when their folders are synced.
    pub(crate) fn change(&mut self, edits: Vec<Edit>) {
        for edit in &edits {
            if let Some(folder) = self.folders.get_mut(&edit.folder) {
                set(&mut folder.seen, edit);
            }
        }
        self.pending.push(edits);
    }

    /// What was done to the names of a folder is durable.
    pub(crate) fn sync(&mut self, folder: Ino) {
        self.settle(|edit| edit.folder == folder);
        if self.above == Above::Follows {
            let mut new = folder;
            while let Some(above) = self.pending_home(new) {
                self.settle_whole(new);
                new = above;
            }
        }
    }

    /// Everything is durable.
    pub(crate) fn sync_all(&mut self) {
        self.settle(|_| true);
    }

    /// Forgets what is not durable, all of it or the latest changes; answers how many changes that were.
    pub(crate) fn lose(&mut self, loss: &mut Loss) -> u64 {
        let all = self.pending.len();
        let kept = match loss {
            Loss::All => 0,
            Loss::Some(chance) => usize::try_from(chance.up_to(all as u64)).unwrap_or(0),
        };
        let pending = std::mem::take(&mut self.pending);
        write_down(&mut self.folders, pending.into_iter().take(kept).flatten());
        for folder in self.folders.values_mut() {
            folder.seen.clone_from(&folder.durable);
        }
        (all - kept) as u64
    }

    /// Everything that has a name, had one that may come back, or is below such a folder, the root included.
    pub(crate) fn reachable(&self) -> HashSet<Ino> {
        let mut found = HashSet::from([ROOT]);
        let mut look = vec![ROOT];
        let waiting = self.pending.iter().flatten().filter_map(|edit| edit.to);
        for ino in waiting {
            if found.insert(ino) {
                look.push(ino);
            }
        }
        while let Some(folder) = look.pop().map(|ino| self.folders.get(&ino)) {
            for ino in folder
                .into_iter()
                .flat_map(|f| f.durable.values().chain(f.seen.values()))
            {
                if found.insert(*ino) {
                    look.push(*ino);
                }
            }
        }
        found
    }

    /// Drops folders that are not among these.
    pub(crate) fn keep(&mut self, these: &HashSet<Ino>) {
        self.folders.retain(|ino, _| these.contains(ino));
    }

    /// The folder in which something has a name that is not durable.
    fn pending_home(&self, ino: Ino) -> Option<Ino> {
        let mut edits = self.pending.iter().flatten();
        edits.find(|edit| edit.to == Some(ino)).map(|edit| edit.folder)
    }

    fn settle(&mut self, durable: impl Fn(&Edit) -> bool) {
        for edits in &mut self.pending {
            let settled: Vec<Edit> = edits.extract_if(.., |edit| durable(edit)).collect();
            write_down(&mut self.folders, settled);
        }
        self.pending.retain(|edits| !edits.is_empty());
    }

    /// All changes that give something a name, each with what happens together with it.
    fn settle_whole(&mut self, named: Ino) {
        let gives = |edits: &Vec<Edit>| edits.iter().any(|edit| edit.to == Some(named));
        let (settled, rest) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(gives);
        self.pending = rest;
        write_down(&mut self.folders, settled.into_iter().flatten());
    }
}

/// Makes changes durable.
fn write_down(folders: &mut HashMap<Ino, Folder>, edits: impl IntoIterator<Item = Edit>) {
    for edit in edits {
        if let Some(folder) = folders.get_mut(&edit.folder) {
            set(&mut folder.durable, &edit);
        }
    }
}

fn set(names: &mut BTreeMap<OsString, Ino>, edit: &Edit) {
    match edit.to {
        Some(ino) => names.insert(edit.name.clone(), ino),
        None => names.remove(&edit.name),
    };
}
