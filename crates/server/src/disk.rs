//! The [`Disk`] port on the real file system.
//!
//! A write whose buffer, length and offset are multiples of 4 KiB goes past the page cache (`O_DIRECT`) where the file
//! system allows it; anything else, and everything where it does not, is buffered. Handles stay open in a small
//! cache; a handle whose sync failed is closed and never synced again (a failed fsync is final for its file).

use crate::folders::{self, Folders};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidelock_record::{AlignedBuf, Disk, FilePath, IoError, IoOp, IoOutput};

/// Alignment that direct I/O asks of buffers, lengths and offsets.
const DIRECT_ALIGN: usize = 4096;
/// Zeros that are written at once into a new file.
const ZEROS_BYTES: usize = 1 << 18;
/// Owner and group only: messages may be anybody's secrets.
const FILE_MODE: Mode = Mode::from_raw_mode(0o640);
/// Folders below the store's in which files are made whole or not at all: `wal/lane-0000` and `groups`. Blocks of streams
/// are made otherwise.
const UNFINISHED_DEPTH: u32 = 2;
/// Most handles kept open.
const HANDLES_MAX: usize = 512;
/// Buffers kept in which parts are put together: as many as threads do that at a time.
const BUFFERS_MAX: usize = 2;
/// Larger buffers are not kept.
const BUFFER_BYTES_MAX: usize = 2 << 20;

/// A folder of the file system as a [`Disk`].
pub(crate) struct FileDisk {
    root: PathBuf,
    folders: Folders,
    handles: Mutex<HashMap<(FilePath, Access), Arc<File>>>,
    /// Empty files that were made and not synced yet: their names are not durable.
    unnamed: Mutex<HashSet<FilePath>>,
    /// For the next writes of many parts: memory that was just written is at hand, and mapped.
    buffers: Mutex<Vec<AlignedBuf>>,
}

/// How a handle writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Access {
    Buffered,
    Direct,
}

impl FileDisk {
    /// The folder `root`, made if it is missing.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(crate) fn open(root: &Path) -> std::io::Result<Self> {
        folders::make(root)?;
        remove_unfinished(root, UNFINISHED_DEPTH);
        Ok(Self {
            root: root.to_owned(),
            folders: Folders::below(root),
            handles: Mutex::new(HashMap::new()),
            unnamed: Mutex::new(HashSet::new()),
            buffers: Mutex::new(Vec::new()),
        })
    }

    fn path(&self, file: &FilePath) -> PathBuf {
        self.root.join(file.as_str())
    }

    fn handle(&self, file: &FilePath, mode: Access) -> Result<Arc<File>, Errno> {
        let key = (file.clone(), mode);
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = handles.get(&key) {
            return Ok(Arc::clone(handle));
        }
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if mode == Access::Direct {
            flags |= OFlags::DIRECT;
        }
        let handle = Arc::new(File::from(rustix::fs::open(
            self.path(file),
            flags,
            Mode::empty(),
        )?));
        if handles.len() >= HANDLES_MAX {
            handles.clear();
        }
        handles.insert(key, Arc::clone(&handle));
        Ok(handle)
    }

    fn forget(&self, file: &FilePath) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.remove(&(file.clone(), Access::Buffered));
        handles.remove(&(file.clone(), Access::Direct));
    }

    /// The file has gone, or has got another name, which is durable.
    fn forget_name(&self, file: &FilePath) {
        self.forget(file);
        let mut unnamed = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        unnamed.remove(file);
    }

    fn write(&self, file: &FilePath, offset: u64, parts: &[Bytes], sync: bool) -> Result<(), Errno> {
        if gathers(offset, parts) {
            let gathered = self.gather(parts);
            let result = self.write_parts(file, offset, std::slice::from_ref(&gathered), sync);
            self.keep(gathered);
            result
        } else {
            self.write_parts(file, offset, parts, sync)
        }
    }

    fn write_parts(&self, file: &FilePath, offset: u64, parts: &[Bytes], sync: bool) -> Result<(), Errno> {
        let direct = offset.is_multiple_of(DIRECT_ALIGN as u64) && parts.iter().all(aligned);
        let handle = if direct {
            self.handle(file, Access::Direct)
        } else {
            Err(Errno::INVAL)
        };
        let handle = match handle {
            Ok(handle) => handle,
            Err(Errno::INVAL) => self.handle(file, Access::Buffered)?,
            Err(other) => return Err(other),
        };
        write_all(&handle, offset, parts)?;
        if sync {
            self.sync_handle(file, &handle)
        } else {
            Ok(())
        }
    }

    /// One part of all, in memory that can be written past the page cache.
    fn gather(&self, parts: &[Bytes]) -> Bytes {
        let len = parts.iter().map(Bytes::len).sum();
        let kept = self.buffers().pop();
        let mut all = kept.unwrap_or_else(|| AlignedBuf::with_capacity(len));
        for part in parts {
            all.extend_from_slice(part);
        }
        all.freeze()
    }

    /// Keeps the memory of a buffer that was written.
    fn keep(&self, gathered: Bytes) {
        let mut buffers = self.buffers();
        if let Some(buffer) = AlignedBuf::reclaim(gathered)
            && buffer.capacity() <= BUFFER_BYTES_MAX
            && buffers.len() < BUFFERS_MAX
        {
            buffers.push(buffer);
        }
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<AlignedBuf>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync_handle(&self, file: &FilePath, handle: &File) -> Result<(), Errno> {
        rustix::fs::fdatasync(handle).inspect_err(|_| self.forget(file))?;
        let mut unnamed = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        if unnamed.is_empty() || !unnamed.remove(file) {
            return Ok(());
        }
        drop(unnamed);
        self.sync_folder(file)
    }

    fn create(&self, file: &FilePath, len: u64) -> Result<(), Errno> {
        let path = self.path(file);
        if path.exists() {
            return Err(Errno::EXIST);
        }
        if len == 0 {
            return self.create_empty(file, &path);
        }
        let (temporary, handle) = self.temporary(&path)?;
        let filled = fill_with_zeros(&temporary, &handle, len);
        give_up_on_error(
            filled.and_then(|()| self.publish(file, &temporary, &handle)),
            &temporary,
        )
    }

    fn create_empty(&self, file: &FilePath, path: &Path) -> Result<(), Errno> {
        self.make_folder_of(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, FILE_MODE)?;
        let mut unnamed = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        unnamed.insert(file.clone());
        Ok(())
    }

    fn replace(&self, file: &FilePath, data: &Bytes) -> Result<(), Errno> {
        let (temporary, handle) = self.temporary(&self.path(file))?;
        let written = write_all(&handle, 0, std::slice::from_ref(data));
        give_up_on_error(
            written.and_then(|()| self.publish(file, &temporary, &handle)),
            &temporary,
        )
    }

    /// Replaces a file by another one that is written over first: its space is used again, none is asked for.
    fn replace_from(&self, file: &FilePath, data: &Bytes, reserve: &FilePath) -> Result<(), Errno> {
        self.forget_name(reserve);
        let mut temporary = self.path(file).into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        rustix::fs::rename(self.path(reserve), &temporary)?;
        let handle = File::from(rustix::fs::open(
            &temporary,
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )?);
        let written = write_all(&handle, 0, std::slice::from_ref(data))
            .and_then(|()| rustix::fs::ftruncate(&handle, data.len() as u64));
        give_up_on_error(
            written.and_then(|()| self.publish(file, &temporary, &handle)),
            &temporary,
        )
    }

    fn space(&self) -> Result<IoOutput, Errno> {
        let disk = rustix::fs::statvfs(&self.root)?;
        Ok(IoOutput::Space {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            total: disk.f_blocks.saturating_mul(disk.f_frsize),
        })
    }

    /// An empty file beside `path`, to be given its name when it is whole.
    fn temporary(&self, path: &Path) -> Result<(PathBuf, File), Errno> {
        let mut temporary = path.to_owned().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        self.make_folder_of(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let fd: OwnedFd = rustix::fs::open(&temporary, flags, FILE_MODE)?;
        Ok((temporary, File::from(fd)))
    }

    fn publish(&self, file: &FilePath, temporary: &Path, handle: &File) -> Result<(), Errno> {
        rustix::fs::fsync(handle)?;
        rustix::fs::rename(temporary, self.path(file))?;
        self.forget(file);
        self.sync_folder(file)
    }

    fn make_folder_of(&self, path: &Path) -> Result<(), Errno> {
        let folder = path.parent().unwrap_or(&self.root);
        self.folders.make(folder).map_err(|e| errno(&e))
    }

    fn sync_folder(&self, file: &FilePath) -> Result<(), Errno> {
        let path = self.path(file);
        let folder = path.parent().unwrap_or(&self.root);
        let fd = rustix::fs::open(folder, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fsync(fd)
    }

    fn read(&self, file: &FilePath, offset: u64, len: usize) -> Result<Bytes, Errno> {
        let handle = self.handle(file, Access::Buffered)?;
        let size = handle.metadata().map_err(|e| errno(&e))?.len();
        let there = usize::try_from(size.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(len);
        let mut data = vec![0; there];
        let mut done = 0;
        while let Some(rest) = data.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let n = rustix::io::pread(&handle, rest, offset + done as u64)?;
            if n == 0 {
                break;
            }
            done += n;
        }
        data.truncate(done);
        Ok(Bytes::from(data))
    }

    fn rename(&self, from: &FilePath, to: &FilePath) -> Result<(), Errno> {
        self.make_folder_of(&self.path(to))?;
        rustix::fs::rename(self.path(from), self.path(to))?;
        self.sync_folder(to)?;
        self.sync_folder(from)
    }

    fn list(&self, dir: &FilePath) -> Result<Vec<String>, Errno> {
        let entries = match std::fs::read_dir(self.path(dir)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(errno(&e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(|e| errno(&e))?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if !name.ends_with(".tmp") {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl Disk for FileDisk {
    fn run(&self, op: &IoOp) -> Result<IoOutput, IoError> {
        let done = |()| IoOutput::Done;
        match op {
            IoOp::Write {
                file,
                offset,
                parts,
                sync,
            } => self.write(file, *offset, parts, *sync).map(done),
            IoOp::Read { file, offset, len } => self
                .read(file, *offset, usize::try_from(*len).unwrap_or(usize::MAX))
                .map(IoOutput::Data),
            IoOp::Create { file, len } => self.create(file, *len).map(done),
            IoOp::Sync { file } => self
                .handle(file, Access::Buffered)
                .and_then(|h| self.sync_handle(file, &h))
                .map(done),
            IoOp::Replace { file, data } => self.replace(file, data).map(done),
            IoOp::ReplaceFrom { file, data, reserve } => self.replace_from(file, data, reserve).map(done),
            IoOp::Space => self.space(),
            IoOp::Rename { from, to } => {
                self.forget_name(from);
                self.forget_name(to);
                self.rename(from, to).map(done)
            }
            IoOp::Truncate { file, len } => self
                .handle(file, Access::Buffered)
                .and_then(|h| rustix::fs::ftruncate(&h, *len))
                .map(done),
            IoOp::Remove { file } => {
                self.forget_name(file);
                match rustix::fs::unlink(self.path(file)) {
                    Ok(()) | Err(Errno::NOENT) => Ok(IoOutput::Done),
                    Err(e) => Err(e),
                }
            }
            IoOp::List { dir } => self.list(dir).map(IoOutput::Names),
            IoOp::Size { file } => self
                .handle(file, Access::Buffered)
                .and_then(|h| h.metadata().map_err(|e| errno(&e)))
                .map(|m| IoOutput::Size(m.len())),
        }
        .map_err(io_error)
    }
}

/// Removes what a crash has left of files that were being made: it would only take space.
fn remove_unfinished(folder: &Path, depth: u32) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().ends_with(".tmp") {
            let _ = std::fs::remove_file(path);
        } else if depth > 0
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && entry.file_name() != "streams"
        {
            remove_unfinished(&path, depth - 1);
        }
    }
}

/// A file that has not become whole must not keep the space that it has got: on a full disk that may be all there is.
fn give_up_on_error(result: Result<(), Errno>, temporary: &Path) -> Result<(), Errno> {
    result.inspect_err(|_| {
        let _ = rustix::fs::unlink(temporary);
    })
}

/// Writes zeros past the page cache, where they would only be in the way of what is written there next.
fn fill_with_zeros(path: &Path, handle: &File, len: u64) -> Result<(), Errno> {
    let mut zeros = AlignedBuf::with_capacity(ZEROS_BYTES);
    zeros.pad_to(ZEROS_BYTES);
    let zeros = zeros.freeze();
    let whole = len.is_multiple_of(DIRECT_ALIGN as u64);
    let direct = rustix::fs::open(
        path,
        OFlags::WRONLY | OFlags::CLOEXEC | OFlags::DIRECT,
        Mode::empty(),
    );
    let direct = direct.ok().filter(|_| whole).map(File::from);
    let handle = direct.as_ref().unwrap_or(handle);
    let mut at = 0;
    while at < len {
        let piece = zeros.slice(..usize::try_from(len - at).unwrap_or(ZEROS_BYTES).min(ZEROS_BYTES));
        write_all(handle, at, std::slice::from_ref(&piece))?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Whether parts that are not aligned each are so all together.
fn gathers(offset: u64, parts: &[Bytes]) -> bool {
    parts.len() > 1
        && offset.is_multiple_of(DIRECT_ALIGN as u64)
        && parts
            .iter()
            .map(Bytes::len)
            .sum::<usize>()
            .is_multiple_of(DIRECT_ALIGN)
}

fn aligned(part: &Bytes) -> bool {
    part.len().is_multiple_of(DIRECT_ALIGN) && (part.as_ptr() as usize).is_multiple_of(DIRECT_ALIGN)
}

fn write_all(handle: &File, mut offset: u64, parts: &[Bytes]) -> Result<(), Errno> {
    let mut slices: Vec<IoSlice<'_>> = parts
        .iter()
        .filter(|p| !p.is_empty())
        .map(|p| IoSlice::new(p))
        .collect();
    let mut rest: &mut [IoSlice<'_>] = &mut slices;
    while !rest.is_empty() {
        let batch = rest.get(..rest.len().min(512)).unwrap_or_default();
        match rustix::io::pwritev(handle, batch, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                offset += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

fn io_error(e: Errno) -> IoError {
    match e {
        Errno::NOENT => IoError::NotFound,
        Errno::EXIST => IoError::AlreadyExists,
        Errno::NOSPC | Errno::DQUOT => IoError::NoSpace,
        other => IoError::Device(other.to_string().into()),
    }
}
