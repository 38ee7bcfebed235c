//! attention: Rust declares the functions of libringattn that it calls, and wraps a plan: it is
//! dropped once, borrows its inputs for a call, and fails with the library's text. (For all
//! functions let bindgen read the header.)
//!
//!     rustc -O attention.rs -L PREFIX/lib
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_double, c_int, c_void};
use std::{mem, ptr};

const FLOAT32: c_int = 0;

#[repr(C)]
pub struct Tensor {
    data: *mut c_void,
    kind: c_int,
    batch: i64,
    row: i64,
    head: i64,
}

#[repr(C)]
pub struct Arrays {
    size: usize,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    o: Tensor,
    lse: Tensor,
    d_out: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    d_lse: Tensor,
    sink: Tensor,
    d_sink: Tensor,
    slopes: Tensor,
    largest: Tensor,
}

#[link(name = "ringattn")]
extern "C" {
    fn ra_config_init(config: *mut i64, size: usize);
    fn ra_config_set(
        config: *mut i64,
        field: *const c_char,
        value: c_double,
        error: *mut c_char,
    ) -> c_int;
    fn ra_plan_create(
        plan: *mut *mut c_void,
        config: *const i64,
        link: *const c_void,
        error: *mut c_char,
    ) -> c_int;
    fn ra_plan_destroy(plan: *mut c_void);
    fn ra_plan_error(plan: *const c_void) -> *const c_char;
    fn ra_tensor_bnhd(data: *mut c_void, kind: c_int, rows: i64, heads: i64, dim: i64) -> Tensor;
    fn ra_tensor_bhn(data: *mut c_void, rows: i64, heads: i64) -> Tensor;
    fn ra_forward(plan: *mut c_void, arrays: *const Arrays) -> c_int;
}

/// Ok, or the text that the library has written.
fn check(status: c_int, text: *const c_char) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()),
    }
}

/// A plan of one process for arrays (rows, heads, dim) of f32.
pub struct Plan {
    plan: *mut c_void,
    shape: [usize; 3],
}

impl Plan {
    /// More fields of struct ra_config by their names.
    pub fn new(shape: [usize; 3], fields: &[(&str, f64)]) -> Result<Plan, String> {
        let (mut config, mut error, mut plan) = ([0i64; 64], [0 as c_char; 320], ptr::null_mut());
        let [rows, heads, dim] = shape.map(|length| length as f64);
        let own = [("queries", rows), ("heads", heads), ("dim", dim)];
        unsafe {
            ra_config_init(config.as_mut_ptr(), mem::size_of_val(&config));
            for &(field, value) in own.iter().chain(fields) {
                let field = CString::new(field).map_err(|error| error.to_string())?;
                let status = ra_config_set(
                    config.as_mut_ptr(),
                    field.as_ptr(),
                    value,
                    error.as_mut_ptr(),
                );
                check(status, error.as_ptr())?;
            }
            let status =
                ra_plan_create(&mut plan, config.as_ptr(), ptr::null(), error.as_mut_ptr());
            check(status, error.as_ptr())?;
        }
        Ok(Plan { plan, shape })
    }

    /// o and lse, (rows, heads, dim) and (heads, rows).
    pub fn forward(
        &mut self,
        q: &[f32],
        k: &[f32],
        v: &[f32],
    ) -> Result<(Vec<f32>, Vec<f32>), String> {
        let [rows, heads, dim] = self.shape;
        let count = rows * heads * dim;
        if [q.len(), k.len(), v.len()] != [count; 3] {
            return Err(format!("give q, k and v of {count} numbers"));
        }
        let (mut o, mut lse) = (vec![0f32; count], vec![0f32; rows * heads]);
        unsafe {
            // Inputs are only read, though the struct has one kind of pointer.
            let tensor = |data: *const f32| {
                ra_tensor_bnhd(
                    data as *mut c_void,
                    FLOAT32,
                    rows as i64,
                    heads as i64,
                    dim as i64,
                )
            };
            let mut arrays: Arrays = mem::zeroed();
            arrays.size = mem::size_of::<Arrays>();
            arrays.q = tensor(q.as_ptr());
            arrays.k = tensor(k.as_ptr());
            arrays.v = tensor(v.as_ptr());
            arrays.o = tensor(o.as_mut_ptr());
            arrays.lse = ra_tensor_bhn(lse.as_mut_ptr().cast(), rows as i64, heads as i64);
            check(ra_forward(self.plan, &arrays), ra_plan_error(self.plan))?;
        }
        Ok((o, lse))
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        unsafe { ra_plan_destroy(self.plan) }
    }
}

/// o by the definition, causal, in f64.
fn naive([rows, heads, dim]: [usize; 3], q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let mut o = vec![0.0; rows * heads * dim];
    for i in 0..rows {
        for h in 0..heads {
            let at = |row: usize| (row * heads + h) * dim;
            let dot = |j: usize| {
                (0..dim)
                    .map(|c| q[at(i) + c] as f64 * k[at(j) + c] as f64)
                    .sum::<f64>()
            };
            let p: Vec<f64> = (0..=i)
                .map(|j| (dot(j) / (dim as f64).sqrt()).exp())
                .collect();
            let sum: f64 = p.iter().sum();
            for c in 0..dim {
                o[at(i) + c] = (0..=i).map(|j| p[j] * v[at(j) + c] as f64).sum::<f64>() / sum;
            }
        }
    }
    o
}

fn main() -> Result<(), String> {
    let shape = [37, 2, 8];
    let wave = |step: f32| {
        (0..shape.iter().product())
            .map(|e: usize| (step * e as f32).sin())
            .collect()
    };
    let (q, k, v): (Vec<f32>, Vec<f32>, Vec<f32>) = (wave(1.0), wave(2.0), wave(3.0));

    let mut plan = Plan::new(shape, &[("causal", 1.0)])?;
    let (o, lse) = plan.forward(&q, &k, &v)?;
    let near = |(got, want): (&f32, &f64)| (*got as f64 - want).abs() <= 1e-5; // no NaN is near
    if !o.iter().zip(&naive(shape, &q, &k, &v)).all(near) || lse.iter().any(|x| x.is_nan()) {
        return Err("o is not what the definition says".into());
    }
    println!("{} numbers, within 1e-5 of the definition", o.len());

    match Plan::new([37, 0, 8], &[]) {
        Err(text) => Ok(println!("refused, as it should be: {text}")),
        Ok(_) => Err("0 heads were not refused".into()),
    }
}
