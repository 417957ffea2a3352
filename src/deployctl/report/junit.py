"""A validation as JUnit XML, for a pipeline that gates a sale."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from deployctl.records.validation import Claim, Validation
from deployctl.report.words import clean

# What clean() leaves and XML 1.0 still has no room for (section 2.2): the two noncharacters of the first plane.
_NOT_XML = re.compile("[\ufffe\uffff]")


def render(validation: Validation) -> str:
    """Return the XML: a suite per host, a case per promise; FAIL is a failure, INCONCLUSIVE an error."""
    root = Xml.Element("testsuites", name=f"deployctl validate {_text(validation.plan.id)}")
    for host in validation.hosts:
        cases = list(host.claims)
        failures = sum(claim.verdict == "FAIL" for claim in cases)
        errors = sum(claim.verdict == "INCONCLUSIVE" for claim in cases) + bool(host.problem)
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_text(f"{validation.plan.id} on {host.host}"),
            tests=str(len(cases) + bool(host.problem)),
            failures=str(failures),
            errors=str(errors),
            skipped="0",
            timestamp=validation.started_at.strftime("%Y-%m-%dT%H:%M:%S"),
            time=f"{(validation.ended_at - validation.started_at).total_seconds():.3f}",
        )
        for claim in cases:
            _case(suite, claim, host.host)
        if host.problem:
            case = Xml.SubElement(suite, "testcase", name="measured to the end", classname=_text(host.host))
            Xml.SubElement(case, "error", type="INCONCLUSIVE", message=_text(host.problem))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _case(suite: Xml.Element, claim: Claim, host: str) -> None:
    about = f" of {claim.model}" if claim.model else ""
    case = Xml.SubElement(
        suite,
        "testcase",
        name=_text(f"{claim.kind}{about}: {claim.promised:g} {claim.unit}"),
        classname=_text(f"{host}.{claim.model or 'hardware'}"),
    )
    said = _text(f"promised {claim.promised:g} {claim.unit}; {figures(claim)}; {claim.evidence}")
    if claim.verdict == "FAIL":
        Xml.SubElement(case, "failure", type="FAIL", message=said)
    elif claim.verdict == "INCONCLUSIVE":
        Xml.SubElement(case, "error", type="INCONCLUSIVE", message=said)
    else:
        Xml.SubElement(case, "system-out").text = said


def figures(claim: Claim) -> str:
    """What was found, with its interval."""
    if claim.estimate is None:
        return "nothing found"
    low = "no bound" if claim.low is None else f"{claim.low:.4g}"
    high = "no bound" if claim.high is None else f"{claim.high:.4g}"
    between = "" if claim.low is None and claim.high is None else f" ({low} to {high})"
    return f"found {claim.estimate:.4g}{between}"


def _text(value: str) -> str:
    return _NOT_XML.sub("\ufffd", clean(value, 1000))
