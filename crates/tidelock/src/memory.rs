//! The allocator, and which of its arenas a thread uses.
//!
//! A worker and the threads that work for its disk share one arena, and no two workers do: what one burst has used is
//! at hand for the next, and workers do not wait for each other. With an arena for each core, a worker that moves from
//! core to core touches the memory of all of them. All other threads use the first worker's.

#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) use jemalloc::join_arena;

/// Gives the calling thread the arena of that worker.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn join_arena(_worker: u16) {}

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod jemalloc {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};
    use tikv_jemalloc_ctl::{Result, raw};

    #[global_allocator]
    static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

    /// How the allocator works, in its own words. Huge pages: large buffers are copied and handed to the disk page by
    /// page otherwise. One arena, to which [`join_arena`] adds: each arena in use holds a huge page. Memory that was
    /// freed stays mapped for a while, since the next burst wants it again.
    #[allow(
        unsafe_code,
        reason = "the allocator looks for its settings under this name before anything else runs"
    )]
    // SAFETY: the allocator reads a pointer to a string that ends with a zero under this name; nothing else bears it.
    #[unsafe(export_name = "_rjem_malloc_conf")]
    static ALLOCATOR_SETTINGS: &[u8; 42] = b"narenas:1,thp:always,dirty_decay_ms:30000\0";

    /// Arenas that were made, by worker. The first worker has the one that the process begins with.
    static ARENAS: Mutex<BTreeMap<u16, u32>> = Mutex::new(BTreeMap::new());

    /// Gives the calling thread the arena of that worker.
    pub(crate) fn join_arena(worker: u16) {
        if let Err(error) = arena_of(worker).and_then(use_arena) {
            tracing::debug!("worker {worker} shares memory with others: {error}");
        }
    }

    fn arena_of(worker: u16) -> Result<u32> {
        if worker == 0 {
            return Ok(0);
        }
        let mut arenas = ARENAS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arena) = arenas.get(&worker) {
            return Ok(*arena);
        }
        let made = make_arena()?;
        arenas.insert(worker, made);
        Ok(made)
    }

    #[allow(
        unsafe_code,
        reason = "the allocator's settings are typed by their names only"
    )]
    fn make_arena() -> Result<u32> {
        // SAFETY: the name ends with a zero, and what is read under it is an `unsigned`.
        unsafe { raw::read(b"arenas.create\0") }
    }

    #[allow(
        unsafe_code,
        reason = "the allocator's settings are typed by their names only"
    )]
    fn use_arena(arena: u32) -> Result<()> {
        // SAFETY: the name ends with a zero, and what is written under it is an `unsigned`.
        unsafe { raw::write(b"thread.arena\0", arena) }
    }

    #[cfg(test)]
    mod tests {
        use super::{join_arena, raw};
        use std::thread;

        #[allow(
            unsafe_code,
            reason = "the allocator's settings are typed by their names only"
        )]
        fn arena() -> u32 {
            // SAFETY: the name ends with a zero, and what is read under it is an `unsigned`.
            unsafe { raw::read(b"thread.arena\0") }.unwrap()
        }

        fn arena_in(worker: u16) -> u32 {
            let work = move || {
                join_arena(worker);
                arena()
            };
            thread::spawn(work).join().unwrap()
        }

        #[test]
        fn threads_of_a_worker_share_an_arena_and_workers_do_not() {
            assert_eq!(
                arena(),
                0,
                "the settings were not taken: there are several arenas"
            );
            let [first, second, third] = [0, 1, 2].map(arena_in);
            assert_eq!(first, 0);
            assert_ne!(second, 0);
            assert_ne!(third, 0);
            assert_ne!(second, third);
            assert_eq!([0, 1, 2].map(arena_in), [first, second, third]);
        }

        #[allow(
            unsafe_code,
            reason = "the allocator's settings are typed by their names only"
        )]
        #[test]
        fn the_settings_are_taken() {
            // SAFETY: the name ends with a zero, and what is read under it is an `unsigned`.
            let arenas: u32 = unsafe { raw::read(b"opt.narenas\0") }.unwrap();
            // SAFETY: the name ends with a zero, and what is read under it is a `ssize_t`.
            let decay: isize = unsafe { raw::read(b"opt.dirty_decay_ms\0") }.unwrap();
            assert_eq!((arenas, decay), (1, 30_000));
        }
    }
}
