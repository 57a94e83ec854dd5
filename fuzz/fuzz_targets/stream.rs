#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidelock_fuzz::stream(data));
