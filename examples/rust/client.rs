//! client.rs - gcomp.h from Rust: two workers, which are threads, exchange a gradient of one bit an element.
//!
//! Shows     bindings written by hand, which gcomp_layout checks; collectives as Rust functions; a mean and its error
//! Build     make build/client: an object of gcomp.h and gcomp_layouts.h, and rustc -C link-arg=OBJECT
//! Run       build/client

use std::ffi::CStr;
use std::mem::{size_of, zeroed};
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{addr_of, null, null_mut};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

// ---------------- the bindings: the structs as gcomp.h declares them, and the functions that are used here

type Function = Option<unsafe extern "C" fn()>; // a callback that is not used here

#[repr(C)]
struct Comm {
    user: *mut c_void, rank: c_int, world: c_int,
    allreduce: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> c_int>,
    allgather: Option<unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize) -> c_int>,
    allgatherv: Function, allreduce_max: Function, alltoallv: Function,
    start: Function, test: Function, wait: Function, allreduce_dtypes: u32,
}

#[repr(C)]
struct Allocator { alloc: Function, free: Function, user: *mut c_void }

#[repr(C)]
struct Parallel { run: Function, user: *mut c_void }

#[repr(C)]
struct Desc {
    codec: *const c_char, schedule: *const c_char, comm: Comm, node: Comm, seed: u64, min_elements: usize,
    compress_vectors: c_int, no_error_feedback: c_int, no_checksum: c_int, measure: c_int, aggregate: c_int,
    bucket_bytes: usize, check_every: u32, isa: c_int, allocator: Allocator, parallel: Parallel,
    clock: Function, clock_user: *mut c_void, why: *mut c_char, why_capacity: usize,
    residual: *const c_char, optimizer: c_int, decay: f32,
}

#[repr(C)]
struct Tensor { name: *const c_char, rows: usize, cols: usize, stack: usize, dtype: c_int, codec: *const c_char }

extern "C" {
    fn gcomp_open(gc: *mut *mut c_void, desc: *const Desc) -> c_int;
    fn gcomp_close(gc: *mut c_void);
    fn gcomp_add_tensor(gc: *mut c_void, tensor: *const Tensor) -> c_int;
    fn gcomp_exchange(gc: *mut c_void, grads: *const *mut c_void, step: *const c_void) -> c_int;
    fn gcomp_residual_get(gc: *const c_void, tensor: usize, to: *mut f32) -> c_int;
    fn gcomp_error(gc: *const c_void) -> *const c_char;
    fn gcomp_layout(i: usize, offset: *mut usize, size: *mut usize) -> *const c_char;
}

/// Name, offset and size of a struct (its offset is 0) and of each of its fields, as Rust lays them out.
macro_rules! layout {
    ($type:ty, $name:literal, $($field:ident)*) => {{
        let one: $type = unsafe { zeroed() };
        let start = addr_of!(one) as usize;
        fn size<T>(_: &T) -> usize { size_of::<T>() }
        vec![($name.to_string(), 0, size_of::<$type>()),
             $((format!("{}.{}", $name, stringify!($field)), addr_of!(one.$field) as usize - start, size(&one.$field)),)*]
    }};
}

/// The first difference between the structs here and those that the library was compiled with.
fn check_layout() -> Result<usize, String> {
    let mut library = std::collections::HashMap::new();
    let (mut offset, mut size) = (0, 0);
    for i in 0.. {
        let name = unsafe { gcomp_layout(i, &mut offset, &mut size) };
        if name.is_null() { break; }
        library.insert(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(), (offset, size));
    }
    let mut here = layout!(Comm, "gcomp_comm", user rank world allreduce allgather allgatherv allreduce_max alltoallv
                           start test wait allreduce_dtypes);
    here.extend(layout!(Allocator, "gcomp_allocator", alloc free user));
    here.extend(layout!(Parallel, "gcomp_parallel", run user));
    here.extend(layout!(Desc, "gcomp_desc", codec schedule comm node seed min_elements compress_vectors no_error_feedback
                        no_checksum measure aggregate bucket_bytes check_every isa allocator parallel clock clock_user why
                        why_capacity residual optimizer decay));
    here.extend(layout!(Tensor, "gcomp_tensor", name rows cols stack dtype codec));
    for (name, offset, size) in &here {
        if library.remove(name) != Some((*offset, *size)) {
            return Err(format!("{} lies elsewhere, or has another size, in the library", name));
        }
    }
    let structs = ["gcomp_comm.", "gcomp_allocator.", "gcomp_parallel.", "gcomp_desc.", "gcomp_tensor."];
    match library.keys().find(|name| structs.iter().any(|of| name.starts_with(of))) {
        Some(name) => Err(format!("{} is missing here", name)),
        None => Ok(here.len()),
    }
}

// ---------------- a transport: threads hand each other copies of their bytes

const WORKERS: usize = 2;

struct Group { barrier: Barrier, boxes: Mutex<Vec<Vec<u8>>> }

struct Worker { group: Arc<Group>, rank: usize }

impl Worker {
    /// The bytes of all workers, in the order of ranks.
    fn swap(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        self.group.boxes.lock().unwrap()[self.rank] = mine.to_vec();
        self.group.barrier.wait();
        let all = self.group.boxes.lock().unwrap().clone();
        self.group.barrier.wait();
        all
    }
}

unsafe extern "C" fn allgather(user: *mut c_void, mine: *const c_void, all: *mut c_void, bytes: usize) -> c_int {
    let worker = &*(user as *const Worker);
    let everyone = worker.swap(std::slice::from_raw_parts(mine as *const u8, bytes)).concat();
    std::ptr::copy_nonoverlapping(everyone.as_ptr(), all as *mut u8, everyone.len());
    0
}

/// Adds floats in the order of ranks; allreduce_dtypes names no other type.
unsafe extern "C" fn allreduce(user: *mut c_void, data: *mut c_void, count: usize, dtype: c_int) -> c_int {
    if dtype != 0 { return 1; } // GCOMP_F32
    let worker = &*(user as *const Worker);
    let sum = std::slice::from_raw_parts_mut(data as *mut f32, count);
    let everyone = worker.swap(std::slice::from_raw_parts(data as *const u8, 4 * count));
    for (i, x) in sum.iter_mut().enumerate() {
        *x = everyone.iter().map(|w| f32::from_ne_bytes([w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]])).sum();
    }
    0
}

// ---------------- the client

/// A gradient and its mean, or the library's sentence.
fn exchange(worker: &Worker, grad: &mut [f32], residual: &mut Vec<f32>) -> Result<(), String> {
    let mut gc: *mut c_void = null_mut();
    let mut why: [c_char; 256] = [0; 256];
    let said = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    unsafe {
        let mut desc: Desc = zeroed();
        desc.codec = b"sign\0".as_ptr() as *const c_char;
        desc.why = why.as_mut_ptr();
        desc.why_capacity = why.len();
        desc.comm.user = worker as *const Worker as *mut c_void;
        desc.comm.rank = worker.rank as c_int;
        desc.comm.world = WORKERS as c_int;
        desc.comm.allreduce = Some(allreduce);
        desc.comm.allgather = Some(allgather);
        if gcomp_open(&mut gc, &desc) != 0 { return Err(said(why.as_ptr())); }
        let mut tensor: Tensor = zeroed();
        tensor.name = b"weights\0".as_ptr() as *const c_char;
        tensor.rows = 64;
        tensor.cols = grad.len() / 64;
        let grads = [grad.as_mut_ptr() as *mut c_void];
        let failed = gcomp_add_tensor(gc, &tensor) != 0 || gcomp_exchange(gc, grads.as_ptr(), null()) != 0;
        let result = if failed { Err(said(gcomp_error(gc))) } else { Ok(()) };
        residual.resize(grad.len(), 0.0);
        if !failed { gcomp_residual_get(gc, 0, residual.as_mut_ptr()); }
        gcomp_close(gc);
        result
    }
}

fn main() -> Result<(), String> {
    println!("{} sizes and offsets are those of the library", check_layout()?);
    let group = Arc::new(Group { barrier: Barrier::new(WORKERS), boxes: Mutex::new(vec![Vec::new(); WORKERS]) });
    let threads: Vec<_> = (0..WORKERS).map(|rank| {
        let worker = Worker { group: group.clone(), rank };
        thread::spawn(move || -> Result<_, String> {
            let own: Vec<f32> = (0..4096).map(|i| ((i * 37 + 11 * rank) % 101) as f32 / 50.0 - 1.0).collect();
            let (mut mean, mut residual) = (own.clone(), Vec::new());
            exchange(&worker, &mut mean, &mut residual)?;
            Ok((own, mean, residual))
        })
    }).collect();
    let mut results = Vec::new();
    for thread in threads {
        results.push(thread.join().map_err(|_| "a worker has panicked".to_string())??);
    }
    let mean = &results[0].1;
    if results.iter().any(|r| r.1 != *mean) { return Err("the means differ".to_string()); }
    for i in 0..mean.len() { // what was sent is the gradient less what was kept
        let sent: f32 = results.iter().map(|(own, _, kept)| own[i] - kept[i]).sum::<f32>() / WORKERS as f32;
        if (sent - mean[i]).abs() > 1e-5 { return Err(format!("element {}: the mean is {}, not {}", i, mean[i], sent)); }
    }
    println!("element 5 was {:+.3} and {:+.3}; both workers have the mean {:+.3}", results[0].0[5], results[1].0[5], mean[5]);
    Ok(())
}
