//! Names of target regions, as people know them.

/// What messages call the function of a target region: function and line of the program's source, where its name tells them.
/// clang names it `__omp_offloading_<device>_<inode>_<function>_l<line>`.
pub fn describe(symbol: &str) -> String {
    match parse(symbol) {
        Some((function, line)) => format!("the target region of {function}, line {line}"),
        None => symbol.to_owned(),
    }
}

fn parse(symbol: &str) -> Option<(&str, u32)> {
    let rest = symbol.strip_prefix("__omp_offloading_")?;
    let (device, rest) = rest.split_once('_')?;
    let (inode, rest) = rest.split_once('_')?;
    let (function, line) = rest.rsplit_once("_l")?;
    // A second region in the same line has a number behind it: _l12_1, and so have constructors: _l12_ctor.
    let line = line.split('_').next()?;
    let hexadecimal = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_hexdigit());
    if !hexadecimal(device) || !hexadecimal(inode) || function.is_empty() {
        return None;
    }
    Some((function, line.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_and_line_are_found_in_the_name() {
        let name = "__omp_offloading_fe00_2b3c4d_main_l57";
        assert_eq!(describe(name), "the target region of main, line 57");
        let name = "__omp_offloading_fe00_2b3c4d_main_loop_l_x_l8_1";
        assert_eq!(describe(name), "the target region of main_loop_l_x, line 8");
        let name = "__omp_offloading_fe00_2b_init_l8_ctor";
        assert_eq!(describe(name), "the target region of init, line 8");
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in [
            "",
            "main",
            "__omp_offloading_",
            "__omp_offloading_1_2_l",
            "__omp_offloading_x_2_f_l3",
        ] {
            assert_eq!(describe(name), name);
        }
    }
}
