//! The backing folder: `tree` is what is mounted, as plain files, while it is not mounted; `objects` has the durable bytes of each file
//! under its number while it is.

use crate::names::{Above, Ino, ROOT};
use crate::volume::Volume;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Opens what was saved, all of it durable; a folder that is not there is an empty one.
pub(crate) fn load(backing: &Path, above: Above) -> io::Result<Volume> {
    let (tree, objects) = places(backing);
    fs::create_dir_all(&tree)?;
    if objects.exists() {
        fs::remove_dir_all(&objects)?;
    }
    fs::create_dir(&objects)?;
    let mut volume = Volume::new(objects, above);
    fill(&mut volume, ROOT, &tree)?;
    volume.sync_all()?;
    Ok(volume)
}

/// Makes everything durable and lays it out as plain files.
pub(crate) fn save(backing: &Path, volume: &mut Volume) -> io::Result<()> {
    let (tree, objects) = places(backing);
    volume.sync_all()?;
    let new = backing.join("tree.new");
    lay_out(volume, ROOT, &new)?;
    fs::remove_dir_all(&tree)?;
    fs::rename(&new, &tree)?;
    fs::remove_dir_all(&objects)
}

fn places(backing: &Path) -> (PathBuf, PathBuf) {
    (backing.join("tree"), backing.join("objects"))
}

fn fill(volume: &mut Volume, folder: Ino, from: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let mode = u16::try_from(metadata.permissions().mode() & 0o7777).unwrap_or(0);
        let (path, name) = (entry.path(), entry.file_name());
        if metadata.is_dir() {
            let made = volume.create_folder(folder, &name, mode)?;
            fill(volume, made.ino, &path)?;
        } else if metadata.is_file() {
            volume.adopt(folder, &name, mode, |object| fs::hard_link(&path, object))?;
        } else {
            let text = format!("{} is neither a file nor a folder", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
    Ok(())
}

fn lay_out(volume: &Volume, folder: Ino, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for (name, a) in volume.list(folder)? {
        let path = to.join(name);
        if a.folder {
            lay_out(volume, a.ino, &path)?;
        } else if let Some(object) = volume.object(a.ino) {
            fs::hard_link(object, &path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(u32::from(a.mode)))?;
        }
    }
    Ok(())
}
