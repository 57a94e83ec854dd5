//! The model: files and folders as processes see them, and what of that a power loss leaves.
//!
//! Durable are the bytes of a file at its last sync, and the names of a folder at its last sync; the two have nothing to do with each
//! other. So a file that was synced is gone when its folder was not, and a name that is durable may be one of an empty file.
//! Modes are durable at once, and there are no times.

use crate::content::Content;
use crate::loss::{Loss, Lost};
use crate::names::{Above, Edit, Ino, Names, ROOT};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// Why an operation is refused.
pub(crate) type Answer<T> = Result<T, Errno>;

/// What is told of a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Its number.
    pub(crate) ino: Ino,
    /// Whether it is a folder.
    pub(crate) folder: bool,
    /// Bytes; 0 for a folder.
    pub(crate) len: u64,
    /// Permissions.
    pub(crate) mode: u16,
}

/// Everything below the mounted folder.
#[derive(Debug)]
pub(crate) struct Volume {
    objects: PathBuf,
    names: Names,
    files: HashMap<Ino, Content>,
    modes: HashMap<Ino, u16>,
    /// How often each file or folder is open.
    opened: HashMap<Ino, u64>,
    last: Ino,
}

impl Volume {
    /// Nothing but the root; `objects` is an empty folder for the durable bytes of files.
    pub(crate) fn new(objects: PathBuf, above: Above) -> Self {
        Self {
            objects,
            names: Names::new(above),
            files: HashMap::new(),
            modes: HashMap::from([(ROOT, 0o755)]),
            opened: HashMap::new(),
            last: ROOT,
        }
    }

    /// What has a name.
    pub(crate) fn find(&self, folder: Ino, name: &OsStr) -> Answer<Attributes> {
        let ino = self.names.find(folder, name).ok_or(Errno::NOENT)?;
        self.attributes(ino)
    }

    /// What is told of a file or folder.
    pub(crate) fn attributes(&self, ino: Ino) -> Answer<Attributes> {
        let mode = *self.modes.get(&ino).ok_or(Errno::STALE)?;
        let len = self.files.get(&ino).map_or(0, Content::len);
        Ok(Attributes {
            ino,
            folder: self.names.is_folder(ino),
            len,
            mode,
        })
    }

    /// Sets permissions.
    pub(crate) fn set_mode(&mut self, ino: Ino, mode: u16) -> Answer<()> {
        *self.modes.get_mut(&ino).ok_or(Errno::STALE)? = mode;
        Ok(())
    }

    /// Makes an empty file.
    pub(crate) fn create(&mut self, folder: Ino, name: &OsStr, mode: u16) -> Answer<Attributes> {
        let ino = self.number(folder, name)?;
        let content = Content::create(self.objects.join(ino.to_string())).map_err(|e| errno(&e))?;
        self.files.insert(ino, content);
        self.name(folder, name, ino, mode)
    }

    /// Gives a file that lies in the folder of objects already its name, as `create` does.
    pub(crate) fn adopt(
        &mut self,
        folder: Ino,
        name: &OsStr,
        mode: u16,
        place: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Answer<Ino> {
        let ino = self.number(folder, name)?;
        let object = self.objects.join(ino.to_string());
        let content = place(&object).and_then(|()| Content::open(object));
        self.files.insert(ino, content.map_err(|e| errno(&e))?);
        self.name(folder, name, ino, mode).map(|a| a.ino)
    }

    /// Makes a folder.
    pub(crate) fn create_folder(&mut self, folder: Ino, name: &OsStr, mode: u16) -> Answer<Attributes> {
        let ino = self.number(folder, name)?;
        self.names.add_folder(ino);
        self.name(folder, name, ino, mode)
    }

    /// Takes a file's name away.
    pub(crate) fn remove(&mut self, folder: Ino, name: &OsStr) -> Answer<()> {
        if self.find(folder, name)?.folder {
            return Err(Errno::ISDIR);
        }
        self.unname(folder, name);
        Ok(())
    }

    /// Takes an empty folder's name away.
    pub(crate) fn remove_folder(&mut self, folder: Ino, name: &OsStr) -> Answer<()> {
        let found = self.find(folder, name)?;
        if !found.folder {
            return Err(Errno::NOTDIR);
        }
        if self.names.list(found.ino).next().is_some() {
            return Err(Errno::NOTEMPTY);
        }
        self.unname(folder, name);
        Ok(())
    }

    /// Gives a file or folder another name, in place of what has it (unless `keep`).
    pub(crate) fn rename(&mut self, from: (Ino, &OsStr), to: (Ino, &OsStr), keep: bool) -> Answer<()> {
        let moved = self.find(from.0, from.1)?;
        if !self.names.is_folder(to.0) {
            return Err(Errno::NOENT);
        }
        if let Ok(there) = self.find(to.0, to.1) {
            if keep {
                return Err(Errno::EXIST);
            }
            if there.ino == moved.ino {
                return Ok(());
            }
            self.may_replace(moved, there)?;
        }
        self.names
            .change(vec![edit(to, Some(moved.ino)), edit(from, None)]);
        self.sweep();
        Ok(())
    }

    fn may_replace(&self, moved: Attributes, there: Attributes) -> Answer<()> {
        match (moved.folder, there.folder) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if self.names.list(there.ino).next().is_some() => Err(Errno::NOTEMPTY),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// All names of a folder.
    pub(crate) fn list(&self, folder: Ino) -> Answer<Vec<(OsString, Attributes)>> {
        let names = self.names.list(folder);
        names
            .map(|(name, ino)| Ok((name.clone(), self.attributes(ino)?)))
            .collect()
    }

    /// Bytes of a file.
    pub(crate) fn read(&self, ino: Ino, offset: u64, size: usize) -> Answer<Vec<u8>> {
        let content = self.files.get(&ino).ok_or(Errno::STALE)?;
        content.read(offset, size).map_err(|e| errno(&e))
    }

    /// Changes a file's bytes or length.
    pub(crate) fn edit(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut Content) -> io::Result<()>,
    ) -> Answer<()> {
        let content = self.files.get_mut(&ino).ok_or(Errno::STALE)?;
        change(content).map_err(|e| errno(&e))
    }

    /// The bytes and the length of a file are durable; its name is another matter.
    pub(crate) fn sync(&mut self, ino: Ino) -> Answer<()> {
        self.edit(ino, Content::sync)
    }

    /// The names of a folder are durable.
    pub(crate) fn sync_folder(&mut self, ino: Ino) -> Answer<()> {
        self.attributes(ino)?;
        self.names.sync(ino);
        self.sweep();
        Ok(())
    }

    /// Everything is durable.
    pub(crate) fn sync_all(&mut self) -> Answer<()> {
        self.names.sync_all();
        self.sweep();
        for content in self.files.values_mut() {
            content.sync().map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    /// A process opens a file or folder: it is there until it is released as often.
    pub(crate) fn open(&mut self, ino: Ino) -> Answer<()> {
        self.attributes(ino)?;
        *self.opened.entry(ino).or_default() += 1;
        Ok(())
    }

    /// The end of one `open`.
    pub(crate) fn release(&mut self, ino: Ino) {
        if let Some(times) = self.opened.get_mut(&ino) {
            *times -= 1;
            if *times == 0 {
                self.opened.remove(&ino);
                self.sweep();
            }
        }
    }

    /// The power goes: what was not synced is forgotten. What is open stays so, and is of no use.
    pub(crate) fn lose(&mut self, mut loss: Loss) -> Answer<Lost> {
        let mut lost = Lost {
            names: self.names.lose(&mut loss),
            ..Lost::default()
        };
        let left = self.names.reachable();
        self.keep(&left);
        let mut inos: Vec<Ino> = self.files.keys().copied().collect();
        inos.sort_unstable();
        for ino in inos {
            self.edit(ino, |content| content.lose(&mut loss, &mut lost))?;
        }
        Ok(lost)
    }

    /// The file of the backing folder that has a file's durable bytes.
    pub(crate) fn object(&self, ino: Ino) -> Option<&Path> {
        self.files.get(&ino).map(Content::object)
    }

    /// A number for something new that is to have this name.
    fn number(&mut self, folder: Ino, name: &OsStr) -> Answer<Ino> {
        if !self.names.is_folder(folder) {
            return Err(Errno::NOENT);
        }
        if self.names.find(folder, name).is_some() {
            return Err(Errno::EXIST);
        }
        self.last += 1;
        Ok(self.last)
    }

    fn name(&mut self, folder: Ino, name: &OsStr, ino: Ino, mode: u16) -> Answer<Attributes> {
        self.modes.insert(ino, mode);
        self.names.change(vec![edit((folder, name), Some(ino))]);
        self.attributes(ino)
    }

    fn unname(&mut self, folder: Ino, name: &OsStr) {
        self.names.change(vec![edit((folder, name), None)]);
        self.sweep();
    }

    /// Drops what has no name any more, cannot get one back and is not open.
    fn sweep(&mut self) {
        let mut left = self.names.reachable();
        left.extend(self.opened.keys());
        self.keep(&left);
    }

    fn keep(&mut self, these: &HashSet<Ino>) {
        self.names.keep(these);
        self.modes.retain(|ino, _| these.contains(ino));
        self.files.retain(|ino, content| {
            let stays = these.contains(ino);
            if !stays {
                // Nobody looks for it any more: at worst it takes space until the end.
                let _ = std::fs::remove_file(content.object());
            }
            stays
        });
    }
}

fn edit((folder, name): (Ino, &OsStr), to: Option<Ino>) -> Edit {
    Edit {
        folder,
        name: name.to_owned(),
        to,
    }
}

/// The number of an error of the backing folder.
pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
