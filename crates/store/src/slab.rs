//! Numbered slots in pages, so that growing never copies what is there and never doubles the memory at once.

/// Slots of a page; the first page grows by doubling, so that a small stream stays small.
const PAGE: u32 = 1024;

/// Values by number. A number is used again after its removal.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    pages: Vec<Vec<T>>,
    free: Vec<u32>,
    used: u32,
}

impl<T: Default> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }

    /// Stores a value. The numbers end at 2^31, which callers rely on for a tag bit.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            if let Some(slot) = self.get_mut(number) {
                *slot = value;
            }
            return number;
        }
        let number = self.used;
        assert!(number < 1 << 31, "a stream has fewer than 2^31 subjects");
        match self.pages.last_mut() {
            Some(page) if !number.is_multiple_of(PAGE) => page.push(value),
            _ => {
                let mut page = Vec::with_capacity(if number == 0 { 1 } else { PAGE as usize });
                page.push(value);
                self.pages.push(page);
            }
        }
        self.used += 1;
        number
    }

    /// Takes the value out; a number that holds none gives the default.
    pub(crate) fn remove(&mut self, number: u32) -> T {
        match self.get_mut(number) {
            Some(slot) => {
                let value = std::mem::take(slot);
                self.free.push(number);
                value
            }
            None => T::default(),
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.pages
            .get((number / PAGE) as usize)?
            .get((number % PAGE) as usize)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.pages
            .get_mut((number / PAGE) as usize)?
            .get_mut((number % PAGE) as usize)
    }

    /// Frees up to one page; whether anything is left. The slab is of no other use afterwards.
    pub(crate) fn dismantle(&mut self) -> bool {
        self.pages.pop();
        !self.pages.is_empty()
    }
}
