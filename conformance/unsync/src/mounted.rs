//! What the kernel asks, answered from the model.
//!
//! Nothing is cached by the kernel, so each write of a process is a write here: with `O_DIRECT` or without it, it waits for a sync.
//! While the power is away every request fails and changes nothing.

use crate::loss::{Loss, Lost};
use crate::names::{Ino, ROOT};
use crate::volume::{Answer, Attributes, Volume};
use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Names and attributes are asked for anew each time: a power loss changes them behind the kernel's back.
const UNTIL: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);

/// A volume with power or without.
#[derive(Debug)]
struct State {
    volume: Volume,
    powered: bool,
    /// What open folders had when they were opened.
    listings: HashMap<u64, Vec<(Ino, FileType, OsString)>>,
    last_listing: u64,
}

/// The mounted file system; clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Mounted {
    state: Arc<Mutex<State>>,
    /// Whose space is told as ours.
    backing: PathBuf,
    /// How long a sync takes.
    sync_takes: Duration,
}

impl Mounted {
    /// A volume, powered.
    pub(crate) fn new(volume: Volume, backing: PathBuf, sync_takes: Duration) -> Self {
        let state = State {
            volume,
            powered: true,
            listings: HashMap::new(),
            last_listing: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            backing,
            sync_takes,
        }
    }

    /// The power goes, and with it what was not synced; a sync that is being waited for has not happened.
    pub(crate) fn cut(&self, loss: Loss) -> Answer<Lost> {
        let mut state = self.state();
        state.powered = false;
        state.volume.lose(loss)
    }

    /// The power is back.
    pub(crate) fn restore(&self) {
        self.state().powered = true;
    }

    /// Works on the volume, powered or not.
    pub(crate) fn volume<T>(&self, work: impl FnOnce(&mut Volume) -> T) -> T {
        work(&mut self.state().volume)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T>(&self, work: impl FnOnce(&mut Volume) -> Answer<T>) -> Answer<T> {
        let mut state = self.state();
        if state.powered {
            work(&mut state.volume)
        } else {
            Err(Errno::IO)
        }
    }

    /// As `ask`, when the disk is done. What is written meanwhile is in it, too.
    fn ask_slowly(&self, work: impl FnOnce(&mut Volume) -> Answer<()>) -> Answer<()> {
        if !self.sync_takes.is_zero() {
            wait(self.sync_takes);
        }
        self.ask(work)
    }

    fn new_listing(&self, folder: Ino) -> Answer<u64> {
        let entries = self.ask(|volume| {
            volume.open(folder)?;
            volume.list(folder)
        })?;
        let dots = [".", ".."].map(|name| (folder, FileType::Directory, OsString::from(name)));
        let rest = entries.into_iter().map(|(name, a)| (a.ino, kind(a), name));
        let mut state = self.state();
        state.last_listing += 1;
        let handle = state.last_listing;
        state
            .listings
            .insert(handle, dots.into_iter().chain(rest).collect());
        Ok(handle)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time that a disk takes for a sync, not a wait for something"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

impl Filesystem for Mounted {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.ask(|v| v.find(parent.0, name)), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attributes(self.ask(|v| v.attributes(ino.0)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = |v: &mut Volume| {
            if let Some(mode) = mode {
                v.set_mode(ino.0, permissions(mode))?;
            }
            if let Some(size) = size {
                v.edit(ino.0, |content| content.set_len(size))?;
            }
            v.attributes(ino.0)
        };
        attributes(self.ask(set), reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(
            self.ask(|v| v.create_folder(parent.0, name, permissions(mode & !umask))),
            reply,
        );
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.ask(|v| v.remove(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.ask(|v| v.remove_folder(parent.0, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
            return reply.error(fuser::Errno::EINVAL);
        }
        let keep = !flags.is_empty();
        done(self.ask(|v| v.rename((parent.0, name), (to.0, new), keep)), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.ask(|v| v.open(ino.0)) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(e) => reply.error(error(e)),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = self.ask(|v| {
            let made = v.create(parent.0, name, permissions(mode & !umask))?;
            v.open(made.ino)?;
            Ok(made)
        });
        match made {
            Ok(a) => reply.created(
                &UNTIL,
                &attr(a),
                GENERATION,
                FileHandle(0),
                FopenFlags::FOPEN_DIRECT_IO,
            ),
            Err(e) => reply.error(error(e)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.ask(|v| v.read(ino.0, offset, size as usize)) {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(error(e)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut written = self.ask(|v| v.edit(ino.0, |content| content.write(offset, data)));
        if written.is_ok() && OFlags::from_bits_retain(flags.0.cast_unsigned()).intersects(OFlags::DSYNC) {
            written = self.ask_slowly(|v| v.sync(ino.0));
        }
        match written {
            // No request is longer than 16 MiB.
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(e) => reply.error(error(e)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // closing is no sync
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.volume(|v| v.release(ino.0));
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.ask_slowly(|v| v.sync(ino.0)), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.ask_slowly(|v| v.sync_folder(ino.0)), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        done(self.ask(|v| allocate(v, ino.0, offset, length, mode)), reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.new_listing(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(e) => reply.error(error(e)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let state = self.state();
        let entries = state.listings.get(&handle.0).into_iter().flatten();
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (ino, kind, name)) in entries.enumerate().skip(from) {
            if reply.add(INodeNo(*ino), at as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let mut state = self.state();
        state.listings.remove(&handle.0);
        state.volume.release(ino.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(&self.backing) {
            Ok(s) => {
                let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
                let (block, name) = (narrow(s.f_bsize), narrow(s.f_namemax));
                reply.statfs(
                    s.f_blocks,
                    s.f_bfree,
                    s.f_bavail,
                    s.f_files,
                    s.f_ffree,
                    block,
                    name,
                    narrow(s.f_frsize),
                );
            }
            Err(e) => reply.error(error(e)),
        }
    }
}

fn allocate(volume: &mut Volume, ino: Ino, offset: u64, length: u64, mode: i32) -> Answer<()> {
    let flags = FallocateFlags::from_bits_retain(mode.cast_unsigned());
    let grow = !flags.contains(FallocateFlags::KEEP_SIZE);
    let rest = flags - FallocateFlags::KEEP_SIZE;
    volume.edit(ino, |content| match rest {
        f if f == FallocateFlags::PUNCH_HOLE || f == FallocateFlags::ZERO_RANGE => {
            content.zero(offset, length, grow)
        }
        f if !f.is_empty() => Err(Errno::OPNOTSUPP.into()),
        _ if grow && offset + length > content.len() => content.set_len(offset + length),
        _ => Ok(()),
    })
}

fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

fn kind(a: Attributes) -> FileType {
    if a.folder {
        FileType::Directory
    } else {
        FileType::RegularFile
    }
}

fn attr(a: Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.len,
        blocks: a.len.div_ceil(512),
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind(a),
        perm: a.mode,
        nlink: if a.ino == ROOT || a.folder { 2 } else { 1 },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn error(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.raw_os_error())
}

fn entry(answer: Answer<Attributes>, reply: ReplyEntry) {
    match answer {
        Ok(a) => reply.entry(&UNTIL, &attr(a), GENERATION),
        Err(e) => reply.error(error(e)),
    }
}

fn attributes(answer: Answer<Attributes>, reply: ReplyAttr) {
    match answer {
        Ok(a) => reply.attr(&UNTIL, &attr(a)),
        Err(e) => reply.error(error(e)),
    }
}

fn done(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(error(e)),
    }
}
