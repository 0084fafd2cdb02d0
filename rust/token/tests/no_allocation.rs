//! Tests that signing and verifying a token allocates no memory. With `--nocapture` it prints the time as well.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "the figure is for a person")]
#![expect(unsafe_code, reason = "an allocator that counts has to implement GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use scorer_token::{Claims, KeyRing, Kind, Scope, Tenant};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread's allocations are counted.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.try_with(Cell::get).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller meets the requirements of `alloc`, which are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the requirements of `dealloc`, which are those of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TOKENS: u32 = 20_000;

#[test]
fn a_token_is_signed_and_verified_without_an_allocation() {
    let keys = format!(r#"{{"keys":[{{"id":"00000001","secret":"{}"}}]}}"#, "ab".repeat(32));
    let ring = KeyRing::from_json(keys.as_bytes()).unwrap();
    let claims = Claims {
        kind: Kind::Action,
        fallback: false,
        decided_at_ms: 1_795_400_000_123,
        bundle: [7; 8],
        index: 5,
        propensity: 0.25,
    };
    let id = "0193a5f0-5c1e-7b6e-9a59-6f1f0a5f2c11";
    let named = "action.authorise";
    let fixed = Scope::new(named, Tenant::UNNAMED);
    COUNTED.set(true);
    let began = Instant::now();
    for _ in 0..TOKENS {
        // The tenant is hashed for each request, the checkpoint only once.
        let scope = Scope { tenant: Tenant::named(b"checkout"), ..fixed };
        let token = ring.sign(&claims, &scope, id).unwrap();
        ring.verify(token.as_bytes(), &scope, id).unwrap();
    }
    let took = began.elapsed() / TOKENS;
    COUNTED.set(false);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
    println!("signed and verified in {took:?}");
}
