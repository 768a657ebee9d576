#!/usr/bin/env python3
"""What the application says of itself to desktops and stores: the files agree with each other, with the sources and with
the version, which is written down in meson.build alone. TAP.

    test-metadata.py SOURCE VERSION LIBEXECDIR BUILT-DATA
"""
import configparser
import datetime
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

source, version, libexecdir, built = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
APP = "io.github.quire_chat.Quire"
SVG = "{http://www.w3.org/2000/svg}"


def ini(path):
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


def metainfo():
    return ET.parse(built / f"{APP}.metainfo.xml").getroot()


def check_versions():
    releases = metainfo().findall("./releases/release")
    assert releases[0].get("version") == version, (releases[0].get("version"), version)
    keys = [[int(n) for n in r.get("version").split(".")] for r in releases]
    assert keys == sorted(keys, reverse=True) and len(set(map(tuple, keys))) == len(keys), keys
    dates = [datetime.date.fromisoformat(r.get("date")) for r in releases]
    assert dates == sorted(dates, reverse=True), dates
    for r in releases:
        assert "".join(r.find("description").itertext()).strip(), "a release without words"


def check_changelogs():
    tool = source / "data/packaging/changelog"
    template = source / f"data/{APP}.metainfo.xml.in"
    debian = subprocess.run([sys.executable, tool, "--debian", template], check=True, capture_output=True, text=True).stdout
    news = subprocess.run([sys.executable, tool, "--news", template], check=True, capture_output=True, text=True).stdout
    assert debian.startswith(f"quire ({version}-1) "), debian[:40]
    assert re.search(r"^ -- .+ <\S+@\S+>  [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000$", debian, re.M)
    assert news.startswith(f"Quire {version}, ") and "  * " in news, news[:40]


def check_metainfo():
    root = metainfo()
    summary = root.findtext("summary")
    assert root.findtext("id") == APP and 10 <= len(summary) <= 35, summary
    assert root.findtext("launchable") == f"{APP}.desktop"
    assert root.find("content_rating").get("type") == "oars-1.1"
    assert root.find("developer/name") is not None and root.find("developer").get("id")
    assert {c.get("scheme_preference") for c in root.findall("branding/color")} == {"light", "dark"}
    assert {"homepage", "vcs-browser", "bugtracker"} <= {u.get("type") for u in root.findall("url")}
    assert len(root.find("description/p").text) >= 80


def check_screenshots():
    shots = metainfo().findall("screenshots/screenshot")
    assert len(shots) >= 3 and shots[0].get("type") == "default"
    for shot in shots:
        caption = shot.find("caption").text
        assert caption and not caption.endswith("."), caption
        path = source / "data/screenshots" / shot.find("image").text.rsplit("/", 1)[1]
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n", path
        width, height = struct.unpack(">II", head[16:24])
        assert 300 <= width <= 1600 and 500 <= height <= 1000, (path, width, height)


def check_desktop_entry():
    entry = ini(built / f"{APP}.desktop")
    main = entry["Desktop Entry"]
    assert main["Icon"] == APP and main["DBusActivatable"] == "true"
    for action in filter(None, main["Actions"].split(";")):
        assert entry[f"Desktop Action {action}"]["Name"]
        # The bus activates an action by its name in the application.
        assert f'{{ "{action}",' in (source / "app/quire-application.c").read_text(), action
    assert main["Exec"].split()[0] == "quire"
    assert "Name[de]" in entry["Desktop Action new-chat"], "the translations are merged"


def check_services():
    app = ini(built / f"{APP}.service")["D-BUS Service"]
    search = ini(built / f"{APP}.SearchProvider.service")["D-BUS Service"]
    provider = ini(built / f"{APP}.search-provider.ini")["Shell Search Provider"]
    assert app["Name"] == APP and app["Exec"].split()[1:] == ["--gapplication-service"]
    assert app["Exec"].startswith("/") and app["Exec"].split()[0].endswith("/bin/quire")
    assert search["Name"] == provider["BusName"] == f"{APP}.SearchProvider"
    assert search["Exec"] == f"{libexecdir}/quire-search", search["Exec"]
    assert provider["DesktopId"] == f"{APP}.desktop" and provider["Version"] == "2"
    path = provider["ObjectPath"]
    assert path == "/" + APP.replace(".", "/") + "/SearchProvider"
    program = (source / "app/quire-search.c").read_text()
    xml = "".join(re.findall(r'"(<[^"]*)"', program[program.index("interface_xml") : program.index("#define QUIRE_TYPE")]))
    interface = ET.fromstring(xml).find("interface")
    assert interface.get("name") == "org.gnome.Shell.SearchProvider2"
    assert len(interface.findall("method")) == 5
    assert '#define PROVIDER_PATH APP_PATH "/SearchProvider"' in program


def check_icons():
    icons = list((source / "data/icons").glob("*.svg"))
    assert len(icons) >= 3
    for icon in icons:
        root = ET.parse(icon).getroot()
        assert root.tag == SVG + "svg", icon
        assert not root.findall(f".//{SVG}image") and not root.findall(f".//{SVG}filter"), f"{icon}: pixels or shadows"
        size = (root.get("width"), root.get("height"))
        text = icon.read_text()
        if icon.name.endswith("-symbolic.svg"):
            assert size == ("16", "16"), (icon, size)
            assert set(re.findall(r"#[0-9a-fA-F]{3,8}", text)) == {"#2e3436"}, f"{icon}: one colour"
        else:
            assert size == ("128", "128") and root.get("viewBox") == "0 0 128 128", (icon, size)
    assert (source / f"data/icons/{APP}.svg").exists() and (source / f"data/icons/{APP}-symbolic.svg").exists()


checks = [check_versions, check_changelogs, check_metainfo, check_screenshots, check_desktop_entry, check_services, check_icons]
failed = 0
for i, check in enumerate(checks, 1):
    try:
        check()
        print(f"ok {i} - {check.__name__[6:]}")
    except Exception as error:
        failed += 1
        print(f"# {type(error).__name__}: {error}\nnot ok {i} - {check.__name__[6:]}")
print(f"1..{len(checks)}")
sys.exit(failed > 0)
